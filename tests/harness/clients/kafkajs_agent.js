// kafkajs as an agent process: see agents.py.
//
// Its consumer always joins a group, so that `consume` uses the layer below: Cluster and its brokers.
'use strict'

const readline = require('readline')
const { Kafka, AssignerProtocol, CompressionTypes, ConfigResourceTypes, logLevel } = require('kafkajs')
const Cluster = require('kafkajs/src/cluster')
const { createLogger } = require('kafkajs/src/loggers')
const silent = require('kafkajs/src/loggers/console')
const socketFactory = require('kafkajs/src/network/socketFactory')

const retry = { retries: 2, initialRetryTime: 50, maxRetryTime: 200 }
let bootstrap, kafka, admin // of the current broker
const codecs = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }
const READ_COMMITTED = 1

const decode = text => (text === null ? null : Buffer.from(text, 'base64'))
const encode = bytes => (bytes === null || bytes === undefined ? null : bytes.toString('base64'))

// kafkajs represents headers as an object.
function headersOf(record) {
  const headers = {}
  for (const [name, value] of record.headers) {
    const bytes = decode(value) || Buffer.alloc(0)
    headers[name] = name in headers ? [].concat(headers[name], bytes) : bytes
  }
  return headers
}

function pairsOf(headers) {
  return Object.entries(headers).flatMap(([name, value]) => [].concat(value).map(one => [name, encode(one)]))
}

async function withCluster(use) {
  const cluster = new Cluster({
    logger: createLogger({ level: logLevel.NOTHING, logCreator: silent }),
    socketFactory: socketFactory(),
    brokers: bootstrap.split(','),
    clientId: 'compat',
    connectionTimeout: 5000,
    requestTimeout: 60000,
    enforceRequestTimeout: true,
    metadataMaxAge: 300000,
    allowAutoTopicCreation: false,
    isolationLevel: READ_COMMITTED,
    offsets: new Map(),
    retry,
  })
  await cluster.connect()
  try {
    return await use(cluster)
  } finally {
    await cluster.disconnect()
  }
}

async function firstOffsets(cluster, partitions) {
  const requested = partitions.map(({ topic, partition }) => ({ topic, partitions: [{ partition }], fromBeginning: true }))
  const offsets = await cluster.fetchTopicsOffset(requested)
  return new Map(offsets.flatMap(({ topic, partitions }) => partitions.map(p => [`${topic}/${p.partition}`, p.offset])))
}

async function connect(address) {
  if (address === bootstrap) return
  await close()
  kafka = new Kafka({ clientId: 'compat', brokers: address.split(','), logLevel: logLevel.NOTHING, retry })
  admin = kafka.admin()
  await admin.connect()
  bootstrap = address
}

async function close() {
  if (bootstrap !== undefined) await admin.disconnect()
  bootstrap = undefined
}

// It retries to produce, but not to get a producer id from a controller that has just gone away.
async function connectPatiently(producer, retries) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await producer.connect()
    } catch (error) {
      if (attempt === retries || !error.name.startsWith('KafkaJSConnection')) throw error
      await new Promise(resolve => setTimeout(resolve, retry.maxRetryTime))
    }
  }
}

const methods = {
  close,

  async produce({ topic, records, codec, acks, idempotent, partition }) {
    const patience = { ...retry, retries: 100 }
    const producer = kafka.producer({
      idempotent,
      ...(idempotent && { maxInFlightRequests: 1, retry: patience }),
    })
    await connectPatiently(producer, idempotent ? 100 : 0)
    try {
      const [{ baseOffset } = {}] = await producer.send({
        topic,
        acks: acks === 'all' ? -1 : Number(acks),
        compression: codecs[codec],
        messages: records.map(record => ({
          partition,
          key: decode(record.key),
          value: decode(record.value),
          headers: headersOf(record),
          ...(record.timestamp !== null && { timestamp: String(record.timestamp) }),
        })),
      })
      return records.map((_, n) => (baseOffset === undefined ? -1 : Number(baseOffset) + n))
    } finally {
      await producer.disconnect()
    }
  },

  consume: ({ starts, count, maxWaitMs, timeoutMs }) =>
    withCluster(async cluster => {
      await cluster.addMultipleTargetTopics([...new Set(starts.map(({ topic }) => topic))])
      const first = await firstOffsets(cluster, starts.filter(({ start }) => start === null))
      const next = new Map(
        starts.map(({ topic, partition, start }) => {
          const key = `${topic}/${partition}`
          return [key, start === null ? Number(first.get(key)) : start]
        })
      )
      const rows = []
      const deadline = Date.now() + timeoutMs
      while (rows.length < count && Date.now() < deadline) {
        const responses = []
        for (const { nodeId } of cluster.brokerPool.metadata.brokers) {
          const led = starts.filter(({ topic, partition }) =>
            cluster.findLeaderForPartitions(topic, [partition])[nodeId]?.includes(partition)
          )
          if (!led.length) continue
          const broker = await cluster.findBroker({ nodeId })
          const response = await broker.fetch({
            maxWaitTime: maxWaitMs,
            minBytes: 1,
            maxBytes: 10485760,
            isolationLevel: READ_COMMITTED,
            topics: led.map(({ topic, partition }) => ({
              topic,
              partitions: [{ partition, fetchOffset: next.get(`${topic}/${partition}`), maxBytes: 1048576 }],
            })),
          })
          responses.push(...response.responses)
        }
        for (const { topicName: topic, partitions } of responses) {
          for (const { partition, messages } of partitions) {
            const key = `${topic}/${partition}`
            for (const message of messages) {
              const offset = Number(message.offset)
              if (offset < next.get(key)) continue // from a batch that starts before
              next.set(key, offset + 1)
              rows.push({
                topic,
                partition,
                offset,
                timestamp: Number(message.timestamp),
                key: encode(message.key),
                value: encode(message.value),
                headers: pairsOf(message.headers),
              })
            }
          }
        }
      }
      return rows
    }),

  async watermarks({ topic }) {
    const [{ low, high }] = await admin.fetchTopicOffsets(topic)
    return [Number(low), Number(high)]
  },

  async offsetForTime({ topic, timestamp }) {
    const [{ offset }] = await admin.fetchTopicOffsetsByTimestamp(topic, timestamp)
    return Number(offset)
  },

  async topics() {
    const { topics } = await admin.fetchTopicMetadata()
    return Object.fromEntries(topics.map(({ name, partitions }) => [name, partitions.length]))
  },

  async cluster() {
    const { clusterId, controller, brokers } = await admin.describeCluster()
    return { id: clusterId, controller, brokers: brokers.map(({ nodeId, host, port }) => [nodeId, `${host}:${port}`]) }
  },

  async createTopic({ topic, partitions, configs }) {
    const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }))
    const topics = [{ topic, numPartitions: partitions, replicationFactor: 1, configEntries }]
    // It returns false for a topic that exists, instead of an error.
    if (!(await admin.createTopics({ topics }))) throw Object.assign(new Error('topic exists'), { code: 36 })
  },

  deleteTopic: ({ topic }) => admin.deleteTopics({ topics: [topic] }),

  createPartitions: ({ topic, total }) => admin.createPartitions({ topicPartitions: [{ topic, count: total }] }),

  async configs({ topic }) {
    const requested = [{ type: ConfigResourceTypes.TOPIC, name: topic }]
    const { resources } = await admin.describeConfigs({ includeSynonyms: false, resources: requested })
    return Object.fromEntries(resources[0].configEntries.map(entry => [entry.configName, entry.configValue]))
  },

  alterConfigs: ({ topic, changes }) =>
    admin.alterConfigs({
      validateOnly: false,
      resources: [
        {
          type: ConfigResourceTypes.TOPIC,
          name: topic,
          configEntries: Object.entries(changes).map(([name, value]) => ({ name, value })),
        },
      ],
    }),

  // It must know the topic's metadata, and returns nothing.
  async deleteRecords({ topic, offset }) {
    await methods.watermarks({ topic })
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: String(offset) }] })
    return (await methods.watermarks({ topic }))[0]
  },

  async listGroups() {
    const { groups } = await admin.listGroups()
    return groups.map(({ groupId }) => groupId)
  },

  async describeGroup({ group }) {
    const { groups } = await admin.describeGroups([group])
    const [{ state, protocol, members }] = groups
    const assignments = members.map(({ clientId, memberAssignment }) => [
      clientId,
      memberAssignment.length ? AssignerProtocol.MemberAssignment.decode(memberAssignment).assignment : {},
    ])
    return { state, assignor: protocol, assignments: Object.fromEntries(assignments) }
  },

  async groupOffsets({ group, topic }) {
    const [{ partitions }] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
    return partitions.map(({ partition, offset }) => [partition, Number(offset)]).filter(([, offset]) => offset >= 0)
  },

  async alterGroupOffsets({ group, topic, offsets }) {
    const partitions = offsets.map(([partition, offset]) => ({ partition, offset: String(offset) }))
    await admin.setOffsets({ groupId: group, topic, partitions })
  },

  deleteGroup: ({ group }) => admin.deleteGroups([group]),
}

// The code may be in the cause, or in the first of several errors.
function codeOf(error) {
  if (!error) return null
  if (typeof error.code === 'number') return error.code
  const nested = [...(error.partitions || []), ...(error.groups || [])].map(part => part.error)
  const codes = [error.cause, ...(error.errors || []), ...nested].map(codeOf)
  return codes.find(code => code !== null) ?? null
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { method, bootstrap: address, ...args } = JSON.parse(line)
    let response
    try {
      await connect(address)
      response = { result: (await methods[method](args)) ?? null }
    } catch (error) {
      response = { error: codeOf(error), message: `${error.name}: ${error.message}` }
    }
    process.stdout.write(JSON.stringify(response) + '\n')
  }
  process.exit(0)
}

main()
