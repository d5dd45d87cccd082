// The worker of the transfer job with kafkajs: see worker.py. Its consumer always joins a group.
'use strict'

const { Kafka, logLevel } = require('kafkajs')

const job = JSON.parse(process.argv[2])

function records(value) {
  const { order, from, to, amount } = JSON.parse(value.toString())
  return [[from, -amount], [to, amount]].map(([account, amount]) => ({
    partition: account % job.partitions,
    value: JSON.stringify({ order, account, amount }),
  }))
}

class Aborted extends Error {}

async function main() {
  const kafka = new Kafka({
    clientId: 'transfers',
    brokers: job.bootstrap.split(','),
    logLevel: logLevel.NOTHING,
    retry: { initialRetryTime: 50, maxRetryTime: 500, retries: 20 },
  })
  const producer = kafka.producer({ transactionalId: job.group, idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  // An empty transaction: its InitProducerId ends the transaction of an earlier worker.
  await (await producer.transaction()).abort()
  const consumer = kafka.consumer({
    groupId: job.group,
    sessionTimeout: 6000,
    heartbeatInterval: 1000,
    maxWaitTimeInMs: 100,
    readUncommitted: false,
  })
  consumer.on('consumer.crash', () => process.exit(1))
  await consumer.connect()
  await consumer.subscribe({ topics: [job.orders], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat, isRunning, isStale }) => {
      for (let first = 0; first < batch.messages.length; first += job.batch_size) {
        if (!isRunning() || isStale()) return
        const some = batch.messages.slice(first, first + job.batch_size)
        const offset = String(Number(some[some.length - 1].offset) + 1)
        const transaction = await producer.transaction()
        try {
          const messages = some.flatMap(({ value }) => records(value))
          // One partition at a time: if a broker fails, kafkajs may send what other brokers have
          // acknowledged once more, with new sequence numbers.
          for (let partition = 0; partition < job.partitions; partition++) {
            const part = messages.filter(message => message.partition === partition)
            if (part.length) await transaction.send({ topic: job.accounts, messages: part })
          }
          await transaction.sendOffsets({
            consumerGroupId: job.group,
            topics: [{ topic: batch.topic, partitions: [{ partition: batch.partition, offset }] }],
          })
          if (Math.random() < job.abort_ratio) throw new Aborted()
          await transaction.commit()
        } catch (error) {
          // What became of a commit that failed is not known: the next worker finds out.
          if (!(error instanceof Aborted)) process.exit(1)
          await transaction.abort()
          consumer.seek({ topic: batch.topic, partition: batch.partition, offset: some[0].offset })
          return
        }
        resolveOffset(some[some.length - 1].offset)
        await heartbeat()
      }
    },
  })
}

main().catch(error => {
  console.error(error)
  process.exit(1)
})
process.on('unhandledRejection', error => {
  console.error(error)
  process.exit(1)
})
