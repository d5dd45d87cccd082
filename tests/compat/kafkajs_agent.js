// kafkajs, at the other end of a pipe: see agents.py.
//
// Its consumer reads in a group or not at all. What lies beneath, which asks and understands, is
// the same without one: Cluster and its brokers.
'use strict'

const readline = require('readline')
const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = require('kafkajs')
const Cluster = require('kafkajs/src/cluster')
const { createLogger } = require('kafkajs/src/loggers')
const silent = require('kafkajs/src/loggers/console')
const socketFactory = require('kafkajs/src/network/socketFactory')

const retry = { retries: 2, initialRetryTime: 50, maxRetryTime: 200 }
let bootstrap, kafka, admin // of the broker that is talked to
const codecs = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }
const READ_COMMITTED = 1

const decode = text => (text === null ? null : Buffer.from(text, 'base64'))
const encode = bytes => (bytes === null || bytes === undefined ? null : bytes.toString('base64'))

// kafkajs takes headers as an object, and gives them as one.
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
    brokers: [bootstrap],
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

async function firstOffsets(cluster, places) {
  const asked = places.map(({ topic, partition }) => ({ topic, partitions: [{ partition }], fromBeginning: true }))
  const found = await cluster.fetchTopicsOffset(asked)
  return new Map(found.flatMap(({ topic, partitions }) => partitions.map(p => [`${topic}/${p.partition}`, p.offset])))
}

async function enter(address) {
  if (address === bootstrap) return
  await leave()
  kafka = new Kafka({ clientId: 'compat', brokers: [address], logLevel: logLevel.NOTHING, retry })
  admin = kafka.admin()
  await admin.connect()
  bootstrap = address
}

async function leave() {
  if (bootstrap !== undefined) await admin.disconnect()
  bootstrap = undefined
}

const verbs = {
  leave,

  async write({ topic, records, codec, acks, idempotent, partition }) {
    const producer = kafka.producer({ idempotent, ...(idempotent && { maxInFlightRequests: 1 }) })
    await producer.connect()
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

  read: ({ starts, count, maxWaitMs, patienceMs }) =>
    withCluster(async cluster => {
      await cluster.addMultipleTargetTopics([...new Set(starts.map(({ topic }) => topic))])
      const first = await firstOffsets(cluster, starts.filter(({ start }) => start === null))
      const next = new Map(
        starts.map(({ topic, partition, start }) => {
          const place = `${topic}/${partition}`
          return [place, start === null ? Number(first.get(place)) : start]
        })
      )
      const rows = []
      const deadline = Date.now() + patienceMs
      while (rows.length < count && Date.now() < deadline) {
        const responses = []
        for (const { nodeId } of cluster.brokerPool.metadata.brokers) {
          const led = starts.filter(({ topic, partition }) =>
            cluster.findLeaderForPartitions(topic, [partition])[nodeId]?.includes(partition)
          )
          if (!led.length) continue
          const broker = await cluster.findBroker({ nodeId })
          const answer = await broker.fetch({
            maxWaitTime: maxWaitMs,
            minBytes: 1,
            maxBytes: 10485760,
            isolationLevel: READ_COMMITTED,
            topics: led.map(({ topic, partition }) => ({
              topic,
              partitions: [{ partition, fetchOffset: next.get(`${topic}/${partition}`), maxBytes: 1048576 }],
            })),
          })
          responses.push(...answer.responses)
        }
        for (const { topicName: topic, partitions } of responses) {
          for (const { partition, messages } of partitions) {
            const place = `${topic}/${partition}`
            for (const message of messages) {
              const offset = Number(message.offset)
              if (offset < next.get(place)) continue // of a batch that begins before
              next.set(place, offset + 1)
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

  async ends({ topic }) {
    const [{ low, high }] = await admin.fetchTopicOffsets(topic)
    return [Number(low), Number(high)]
  },

  async offsetAt({ topic, timestamp }) {
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
    // It tells false, and not an error, of a topic that is there.
    if (!(await admin.createTopics({ topics }))) throw Object.assign(new Error('it is there'), { code: 36 })
  },

  deleteTopic: ({ topic }) => admin.deleteTopics({ topics: [topic] }),

  addPartitions: ({ topic, total }) => admin.createPartitions({ topicPartitions: [{ topic, count: total }] }),

  async configs({ topic }) {
    const asked = [{ type: ConfigResourceTypes.TOPIC, name: topic }]
    const { resources } = await admin.describeConfigs({ includeSynonyms: false, resources: asked })
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

  // It must have heard of the topic before, and gives nothing back.
  async deleteRecords({ topic, offset }) {
    await verbs.ends({ topic })
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: String(offset) }] })
    return (await verbs.ends({ topic }))[0]
  },
}

// The number may be in what caused it, or in the first of several.
function codeOf(error) {
  if (!error) return null
  if (typeof error.code === 'number') return error.code
  const ofPartitions = (error.partitions || []).map(partition => partition.error)
  const codes = [error.cause, ...(error.errors || []), ...ofPartitions].map(codeOf)
  return codes.find(code => code !== null) ?? null
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { do: verb, bootstrap: address, ...args } = JSON.parse(line)
    let answer
    try {
      await enter(address)
      answer = { done: (await verbs[verb](args)) ?? null }
    } catch (error) {
      answer = { refused: codeOf(error), message: `${error.name}: ${error.message}` }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  process.exit(0)
}

main()
