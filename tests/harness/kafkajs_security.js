// One record to a secured listener and back: node kafkajs_security.js '{"address": …}'
const fs = require("fs");
const { Kafka, logLevel } = require("kafkajs");

async function main(request) {
  const config = { clientId: "kafkajs", brokers: [request.address], logLevel: logLevel.ERROR };
  if (request.ca) {
    config.ssl = { ca: [fs.readFileSync(request.ca)] };
    if (request.keystore) {
      const pem = fs.readFileSync(request.keystore);
      Object.assign(config.ssl, { key: pem, cert: pem });
    }
  }
  if (request.mechanism) {
    config.sasl = { mechanism: request.mechanism.toLowerCase() };
    if (request.token) {
      config.sasl.oauthBearerProvider = async () => ({ value: request.token });
    } else {
      Object.assign(config.sasl, { username: request.username, password: request.password });
    }
  }
  const kafka = new Kafka(config);
  const producer = kafka.producer();
  await producer.connect();
  await producer.send({ topic: request.topic, messages: [{ value: "kafkajs" }] });
  await producer.disconnect();
  const consumer = kafka.consumer({ groupId: request.topic, rebalanceTimeout: 1000 });
  await consumer.connect();
  await consumer.subscribe({ topic: request.topic, fromBeginning: true });
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, (event) => reject(event.payload.error));
    consumer.run({
      eachMessage: async ({ message }) => {
        console.log(message.value.toString());
        resolve();
      },
    });
  });
  process.exit(0);
}

main(JSON.parse(process.argv[2])).catch((error) => {
  console.error(error);
  process.exit(1);
});
