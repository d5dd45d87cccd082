// @platformatic/kafka for test_platformatic.py: run one function, print its result as JSON.
import { createRequire } from 'node:module'
import { setTimeout } from 'node:timers/promises'

// ES modules do not look into NODE_PATH.
const require = createRequire(import.meta.url)
const { Consumer, Producer, stringDeserializers, stringSerializers } = await import(
  require.resolve('@platformatic/kafka')
)

const [name, options] = [process.argv[2], JSON.parse(process.argv[3])]
const { address, source, target } = options
const base = { clientId: 'compat', bootstrapBrokers: [address] }
const consumerOptions = { ...base, deserializers: stringDeserializers, maxWaitTime: 100 }

function newProducer(more = {}) {
  return new Producer({ ...base, serializers: stringSerializers, ...more })
}

// Read until there are `count` messages, and no longer than the test.
async function consume(consumer, topic, count, use = () => {}, more = {}) {
  const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest', autocommit: false, ...more })
  const messages = []
  for await (const message of stream) {
    messages.push(message)
    await use(message)
    if (messages.length === count) break
  }
  await stream.close()
  return messages
}

const values = messages => messages.map(({ value }) => value).sort()

const functions = {
  // Produce in batches, and read with two consumers of a group, one after the other.
  async group() {
    const producer = newProducer({ idempotent: true, acks: -1 })
    const messages = Array.from({ length: options.count }, (_, n) => ({ topic: source, key: `k${n}`, value: `v${n}` }))
    await producer.send({ messages })
    await producer.close()
    const parts = []
    for (const count of [options.count, options.more]) {
      const consumer = new Consumer({ ...consumerOptions, groupId: source })
      parts.push(values(await consume(consumer, source, count, message => message.commit())))
      await consumer.close(true)
      const again = newProducer()
      const batch = Array.from({ length: options.more }, (_, n) => ({ topic: source, value: `again${n}` }))
      if (parts.length === 1) await again.send({ messages: batch })
      await again.close()
    }
    return parts
  },

  // Two members of a group at the same time share the partitions.
  async members() {
    const consumers = [0, 1].map(() => new Consumer({ ...consumerOptions, groupId: source }))
    const received = []
    const streams = []
    for (const consumer of consumers) {
      streams.push(await consumer.consume({ topics: [source], mode: 'earliest', autocommit: true }))
    }
    const producer = newProducer()
    let done
    const all = new Promise(resolve => (done = resolve))
    streams.forEach((stream, member) =>
      stream.on('data', ({ value, partition }) => {
        received.push([member, partition, value])
        if (new Set(received.map(([, , v]) => v)).size === options.count) done()
      })
    )
    const messages = Array.from({ length: options.count }, (_, n) => ({ topic: source, partition: n % options.partitions, value: `v${n}` }))
    await producer.send({ messages })
    await all
    const assignments = () => consumers.map(one => one.assignments.flatMap(({ partitions }) => partitions).sort())
    // The first member may still have the assignment from before the second joined.
    while (assignments().flat().length > options.partitions) await setTimeout(20)
    const assigned = assignments()
    for (const stream of streams) await stream.close()
    for (const consumer of consumers) await consumer.close(true)
    await producer.close()
    return { assigned, received: [...new Set(received.map(([, , v]) => v))].sort() }
  },

  // The second transaction of three is aborted: of several aborted ones of a producer in one
  // response, the client skips the last only. Then the committed records are copied with their offsets.
  async transactions() {
    const producer = newProducer({ idempotent: true, transactionalId: source })
    for (let n = 0; n < options.count; n++) {
      const transaction = await producer.beginTransaction()
      const messages = Array.from({ length: options.partitions }, (_, partition) => ({ topic: source, partition, value: `${n}-${partition}` }))
      await transaction.send({ messages })
      await (n % 2 ? transaction.abort() : transaction.commit())
    }
    const consumer = new Consumer({ ...consumerOptions, groupId: source })
    const committed = Math.ceil(options.count / 2) * options.partitions
    const transaction = await producer.beginTransaction()
    await transaction.addConsumer(consumer)
    await consume(consumer, source, committed, async message => {
      await transaction.send({ messages: [{ topic: target, partition: message.partition, value: message.value }] })
      await transaction.addOffset(message)
    })
    await transaction.commit()
    const offsets = await consumer.listCommittedOffsets({ topics: [{ topic: source, partitions: [0, 1] }] })
    await consumer.close(true)
    await producer.close()
    const reader = new Consumer({ ...consumerOptions, groupId: target })
    const copied = values(await consume(reader, target, committed, undefined, { mode: 'earliest' }))
    await reader.close(true)
    return { copied, offsets: offsets.get(source).map(Number) }
  },
}

const result = await functions[name]()
process.stdout.write(JSON.stringify(result) + '\n', () => process.exit(0))
