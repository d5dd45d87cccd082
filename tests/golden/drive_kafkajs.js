// Drive kafkajs through as many of its features as possible.
//
//     node drive_kafkajs.js BOOTSTRAP [SASL_BOOTSTRAP]
//
// The corpus is in the environment variable GOLDEN_CORPUS: see record.py.
'use strict'

const {
  Kafka,
  CompressionTypes,
  ConfigResourceTypes,
  AclResourceTypes,
  AclOperationTypes,
  AclPermissionTypes,
  ResourcePatternTypes,
  logLevel,
} = require('kafkajs')

const [plain, sasl] = process.argv.slice(2)
const { topicPrefix, records } = JSON.parse(process.env.GOLDEN_CORPUS)
const topic = 'golden-kafkajs'
const codecs = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }
const kafka = new Kafka({ clientId: 'golden', brokers: [plain], logLevel: logLevel.NOTHING, retry: { retries: 3 } })
const admin = kafka.admin()
const messages = [0, 1, 2].map(n => ({ key: `key ${n}`, value: `value ${n}` }))

const decode = text => (text === null ? null : Buffer.from(text, 'base64'))
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))

// kafkajs takes headers as an object, and cannot send null values.
function headersOf(record) {
  const headers = {}
  for (const [name, value] of record.headers) {
    const bytes = decode(value) || Buffer.alloc(0)
    headers[name] = name in headers ? [].concat(headers[name], bytes) : bytes
  }
  return headers
}

async function withProducer(settings, use) {
  const producer = kafka.producer(settings)
  await producer.connect()
  try {
    await use(producer)
  } finally {
    await producer.disconnect()
  }
}

async function withMember(settings, count, use) {
  const consumer = kafka.consumer({ heartbeatInterval: 300, maxWaitTimeInMs: 300, ...settings })
  await consumer.connect()
  try {
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    let seen = 0
    await consumer.run({ autoCommit: false, eachMessage: async () => { seen += 1 } })
    for (let n = 0; n < 40 && seen < count; n++) await sleep(200)
    await use(consumer)
  } finally {
    await consumer.disconnect()
  }
}

const steps = {
  createTopics: () =>
    admin.createTopics({
      topics: [
        { topic, numPartitions: 2, replicationFactor: 1, configEntries: [{ name: 'cleanup.policy', value: 'delete' }] },
        { topic: topic + '-assigned', replicaAssignment: [{ partition: 0, replicas: [1] }] },
        ...Object.keys(codecs).map(codec => ({ topic: topicPrefix + codec, numPartitions: 1, replicationFactor: 1 })),
      ],
    }),
  createTopicsThatCannotBe: () => admin.createTopics({ topics: [{ topic }, { topic: 'no spaces' }] }),
  createPartitions: () => admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] }),
  createPartitionsOfNothing: () => admin.createPartitions({ topicPartitions: [{ topic: 'missing', count: 3 }] }),
  produceCorpus: async () => {
    for (const codec of Object.keys(codecs)) {
      await withProducer({}, producer =>
        producer.send({
          topic: topicPrefix + codec,
          compression: codecs[codec],
          messages: records.map(record => ({
            partition: 0,
            key: decode(record.key),
            value: decode(record.value),
            headers: headersOf(record),
            timestamp: String(record.timestamp),
          })),
        })
      )
    }
  },
  produceAcks: async () => {
    for (const acks of [0, 1, -1]) await withProducer({}, producer => producer.send({ topic, acks, messages }))
  },
  produceIdempotent: () =>
    withProducer({ idempotent: true, maxInFlightRequests: 1 }, producer => producer.send({ topic, messages })),
  group: () =>
    withMember({ groupId: topic }, 3, async member => {
      await sleep(1000)
      await member.commitOffsets([{ topic, partition: 0, offset: '1', metadata: 'with metadata' }])
      await member.describeGroup()
      await admin.describeGroups([topic, 'missing'])
    }),
  groupNotEmpty: () => withMember({ groupId: topic + '-alive' }, 1, () => admin.deleteGroups([topic + '-alive'])),
  transactions: () =>
    withProducer({ transactionalId: topic, maxInFlightRequests: 1 }, async producer => {
      const committed = await producer.transaction()
      await committed.send({ topic, messages })
      const topics = [{ topic, partitions: [{ partition: 0, offset: '2' }] }]
      await committed.sendOffsets({ consumerGroupId: topic, topics })
      await committed.commit()
      const aborted = await producer.transaction()
      await aborted.send({ topic, messages })
      await aborted.abort()
    }),
  fenced: () =>
    withProducer({ transactionalId: topic, maxInFlightRequests: 1, retry: { retries: 0 } }, async first => {
      const transaction = await first.transaction()
      await withProducer({ transactionalId: topic, maxInFlightRequests: 1 }, async second => {
        const other = await second.transaction()
        await other.abort()
      })
      await transaction.send({ topic, messages })
    }),
  readCommitted: () => withMember({ groupId: topic + '-committed', readUncommitted: false }, 12, async () => {}),
  readUncommitted: () => withMember({ groupId: topic + '-all', readUncommitted: true }, 12, async () => {}),
  fetchOutOfRange: () =>
    withMember({ groupId: topic + '-lost' }, 1, async member => {
      member.seek({ topic, partition: 0, offset: '10000' })
      await sleep(1000)
    }),
  listGroups: () => admin.listGroups(),
  fetchOffsets: async () => {
    await admin.fetchOffsets({ groupId: topic })
    await admin.fetchOffsets({ groupId: topic, topics: [topic], resolveOffsets: true })
    await admin.fetchTopicOffsets(topic)
    await admin.fetchTopicOffsetsByTimestamp(topic, 1600000000000)
    await admin.fetchTopicOffsetsByTimestamp(topic, Date.now() + 100000)
  },
  setOffsets: async () => {
    await admin.setOffsets({ groupId: topic, topic, partitions: [{ partition: 0, offset: '1' }] })
    await admin.resetOffsets({ groupId: topic, topic, earliest: true })
  },
  describeConfigs: async () => {
    const type = ConfigResourceTypes.TOPIC
    const some = { type, name: topic, configNames: ['retention.ms', 'cleanup.policy'] }
    await admin.describeConfigs({ includeSynonyms: true, resources: [some] })
    await admin.describeConfigs({ includeSynonyms: false, resources: [{ type, name: topic }] })
    await admin.describeConfigs({ includeSynonyms: false, resources: [{ type, name: 'missing' }] })
  },
  alterConfigs: () =>
    admin.alterConfigs({
      validateOnly: false,
      resources: [
        { type: ConfigResourceTypes.TOPIC, name: topic + '-assigned', configEntries: [{ name: 'max.message.bytes', value: '1000' }] },
      ],
    }),
  alterConfigsWrongly: () =>
    admin.alterConfigs({
      validateOnly: true,
      resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries: [{ name: 'no.such', value: '1' }] }],
    }),
  produceTooLarge: () =>
    withProducer({ retry: { retries: 0 } }, producer =>
      producer.send({ topic: topic + '-assigned', messages: [{ value: 'x'.repeat(2000) }] })
    ),
  deleteRecords: () => admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '-1' }] }),
  deleteRecordsTooFar: () => admin.deleteTopicRecords({ topic, partitions: [{ partition: 1, offset: '9999' }] }),
  describeCluster: () => admin.describeCluster(),
  listTopics: () => admin.listTopics(),
  fetchTopicMetadata: () => admin.fetchTopicMetadata({ topics: [topic] }),
  fetchMetadataOfNothing: () => admin.fetchTopicMetadata({ topics: ['missing*'] }),
  createAcls: () =>
    admin.createAcls({
      acl: [
        {
          resourceType: AclResourceTypes.TOPIC,
          resourceName: topic,
          resourcePatternType: ResourcePatternTypes.LITERAL,
          principal: 'User:golden',
          host: '*',
          operation: AclOperationTypes.READ,
          permissionType: AclPermissionTypes.ALLOW,
        },
      ],
    }),
  describeAcls: () => admin.describeAcls(aclFilter),
  deleteAcls: () => admin.deleteAcls({ filters: [aclFilter] }),
  deleteGroups: () => admin.deleteGroups([topic, 'missing']),
  deleteTopics: () =>
    admin.deleteTopics({
      topics: [topic, topic + '-assigned', ...Object.keys(codecs).map(codec => topicPrefix + codec)],
    }),
  deleteMissingTopics: () => admin.deleteTopics({ topics: ['missing'] }),
  sasl: () => login('golden'),
  saslWrong: () => login('wrong'),
}

const aclFilter = {
  resourceType: AclResourceTypes.TOPIC,
  resourceName: topic,
  resourcePatternType: ResourcePatternTypes.LITERAL,
  operation: AclOperationTypes.ANY,
  permissionType: AclPermissionTypes.ANY,
}

async function login(password) {
  if (sasl === undefined) return
  const client = new Kafka({
    clientId: 'golden',
    brokers: [sasl],
    logLevel: logLevel.NOTHING,
    retry: { retries: 0 },
    sasl: { mechanism: 'plain', username: 'golden', password },
  }).admin()
  await client.connect()
  await client.listTopics()
  await client.disconnect()
}

async function main() {
  await admin.connect()
  for (const [name, step] of Object.entries(steps)) {
    try {
      await step()
      console.log(`  ${name}`)
    } catch (error) {
      console.log(`  ${name}: ${error.name}: ${error.message}`)
    }
  }
  await admin.disconnect()
  process.exit(0)
}

main()
