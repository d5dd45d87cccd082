// An admin of groups at the other end of a pipe, as in admins.py: kafkajs.
//
//     node admin.js BOOTSTRAP
'use strict'

const readline = require('readline')
const { Kafka, AssignerProtocol, logLevel } = require('kafkajs')

const retry = { retries: 2, initialRetryTime: 50, maxRetryTime: 200 }
const kafka = new Kafka({ clientId: 'admin', brokers: [process.argv[2]], logLevel: logLevel.NOTHING, retry })
const admin = kafka.admin()

const verbs = {
  async groups() {
    const { groups } = await admin.listGroups()
    return groups.map(({ groupId }) => groupId)
  },

  async describe({ group }) {
    const { groups } = await admin.describeGroups([group])
    const [{ state, protocol, members }] = groups
    const shares = members.map(({ clientId, memberAssignment }) => [
      clientId,
      memberAssignment.length ? AssignerProtocol.MemberAssignment.decode(memberAssignment).assignment : {},
    ])
    return { state, assignor: protocol, shares: Object.fromEntries(shares) }
  },

  async offsets({ group, topic }) {
    const [{ partitions }] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
    return partitions.map(({ partition, offset }) => [partition, Number(offset)]).filter(([, offset]) => offset >= 0)
  },

  async alter({ group, topic, offsets }) {
    const partitions = offsets.map(([partition, offset]) => ({ partition, offset: String(offset) }))
    await admin.setOffsets({ groupId: group, topic, partitions })
  },

  async delete({ group }) {
    await admin.deleteGroups([group])
  },
}

async function answer(line) {
  const question = JSON.parse(line)
  try {
    const done = await verbs[question.do](question)
    return { done: done === undefined ? null : done }
  } catch (error) {
    const inner = error.groups ? error.groups[0].error : error
    const { code } = inner
    return { refused: code === undefined ? null : code, message: String(inner) }
  }
}

async function run() {
  await admin.connect()
  for await (const line of readline.createInterface({ input: process.stdin })) {
    process.stdout.write(JSON.stringify(await answer(line)) + '\n')
  }
  await admin.disconnect()
}

run()
