// A member of a group, as in member.py: kafkajs.
//
//     node member.js SETTINGS
//
// Its one assignor is of its own: no other client knows the name, RoundRobinAssigner. Under another
// name it can be in a group with others, as what it says is what they say.
'use strict'

const fs = require('fs')
const { Kafka, PartitionAssigners, logLevel } = require('kafkajs')

const settings = JSON.parse(process.argv[2])
const journal = fs.openSync(settings.journal, fs.constants.O_WRONLY | fs.constants.O_APPEND)
const say = (...words) => fs.writeSync(journal, [settings.name, ...words].join(' ') + '\n')

function called(name) {
  return name === 'RoundRobinAssigner'
    ? PartitionAssigners.roundRobin
    : context => ({ ...PartitionAssigners.roundRobin(context), name })
}

const retry = { retries: 100, initialRetryTime: 50, maxRetryTime: 250 }
const kafka = new Kafka({
  clientId: settings.name,
  brokers: [settings.bootstrap],
  logLevel: logLevel.WARN,
  logCreator: () => ({ label, log }) => process.stderr.write(`${label} ${log.message} ${log.error || ''}\n`),
  retry,
})
const consumer = kafka.consumer({
  groupId: settings.group,
  sessionTimeout: settings.session_ms,
  heartbeatInterval: settings.heartbeat_ms,
  rebalanceTimeout: settings.rebalance_ms,
  partitionAssigners: settings.assignors.map(called),
  maxWaitTimeInMs: 100,
  retry,
})

consumer.on(consumer.events.GROUP_JOIN, ({ payload }) =>
  say('assigned', (payload.memberAssignment[settings.topic] || []).join(','))
)
consumer.on(consumer.events.REBALANCING, () => say('revoked'))
consumer.on(consumer.events.CRASH, ({ payload }) => say('crashed', payload.error.name, payload.restart))

async function take({ batch, resolveOffset, commitOffsetsIfNecessary, heartbeat, isRunning, isStale }) {
  const { topic, partition } = batch
  if (!isRunning() || isStale() || !batch.messages.length) return
  const lines = batch.messages.map(({ offset, value }) => `${settings.name} got ${partition} ${offset} ${value}\n`)
  fs.writeSync(journal, lines.join(''))
  const offset = String(Number(batch.lastOffset()) + 1)
  resolveOffset(batch.lastOffset())
  say('committing', partition, offset)
  try {
    await commitOffsetsIfNecessary({ topics: [{ topic, partitions: [{ partition, offset }] }] })
    say('committed', partition, offset)
  } catch (error) {
    say('refused', error.code === undefined ? error.name : error.code)
    throw error
  }
  await heartbeat()
}

async function run() {
  await consumer.connect()
  await consumer.subscribe({ topics: [settings.topic], fromBeginning: true })
  process.on('SIGTERM', async () => {
    await consumer.disconnect()
    say('ends')
    process.exit(0)
  })
  await consumer.run({ autoCommit: false, eachBatchAutoResolve: false, eachBatch: take })
}

run().catch(error => {
  process.stderr.write(`${error.stack}\n`)
  process.exit(1)
})
