// A group member as in member.py, with kafkajs.
//
//     node member.js CONFIG
//
// Its only assignor, RoundRobinAssigner, is unknown to other clients. Under the name roundrobin it can
// share a group with them, because the assignment has the same format.
'use strict'

const fs = require('fs')
const { Kafka, PartitionAssigners, logLevel } = require('kafkajs')

const config = JSON.parse(process.argv[2])
const events = fs.openSync(config.events, fs.constants.O_WRONLY | fs.constants.O_APPEND)
const logEvent = (...words) => fs.writeSync(events, [config.name, ...words].join(' ') + '\n')

function assignerNamed(name) {
  return name === 'RoundRobinAssigner'
    ? PartitionAssigners.roundRobin
    : context => ({ ...PartitionAssigners.roundRobin(context), name })
}

const retry = { retries: 100, initialRetryTime: 50, maxRetryTime: 250 }
const kafka = new Kafka({
  clientId: config.name,
  brokers: config.bootstrap.split(','),
  logLevel: logLevel.WARN,
  logCreator: () => ({ label, log }) => process.stderr.write(`${label} ${log.message} ${log.error || ''}\n`),
  retry,
})
const consumer = kafka.consumer({
  groupId: config.group,
  sessionTimeout: config.session_ms,
  heartbeatInterval: config.heartbeat_ms,
  rebalanceTimeout: config.rebalance_ms,
  partitionAssigners: config.assignors.map(assignerNamed),
  maxWaitTimeInMs: 100,
  retry,
})

consumer.on(consumer.events.GROUP_JOIN, ({ payload }) =>
  logEvent('assigned', (payload.memberAssignment[config.topic] || []).join(','))
)
consumer.on(consumer.events.REBALANCING, () => logEvent('revoked'))
consumer.on(consumer.events.CRASH, ({ payload }) => logEvent('crashed', payload.error.name, payload.restart))

async function consume({ batch, resolveOffset, commitOffsetsIfNecessary, heartbeat, isRunning, isStale }) {
  const { topic, partition } = batch
  if (!isRunning() || isStale() || !batch.messages.length) return
  const lines = batch.messages.map(({ offset, value }) => `${config.name} received ${partition} ${offset} ${value}\n`)
  fs.writeSync(events, lines.join(''))
  const offset = String(Number(batch.lastOffset()) + 1)
  resolveOffset(batch.lastOffset())
  logEvent('committing', partition, offset)
  try {
    await commitOffsetsIfNecessary({ topics: [{ topic, partitions: [{ partition, offset }] }] })
    logEvent('committed', partition, offset)
  } catch (error) {
    logEvent('failed', error.code === undefined ? error.name : error.code)
    throw error
  }
  await heartbeat()
}

async function run() {
  await consumer.connect()
  await consumer.subscribe({ topics: [config.topic], fromBeginning: true })
  process.on('SIGTERM', async () => {
    await consumer.disconnect()
    logEvent('left')
    process.exit(0)
  })
  await consumer.run({ autoCommit: false, eachBatchAutoResolve: false, eachBatch: consume })
}

run().catch(error => {
  process.stderr.write(`${error.stack}\n`)
  process.exit(1)
})
