import java.io.IOException;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Small clients, one for each command:
 *
 * <pre>
 * consume BOOTSTRAP GROUP PROTOCOL TOPIC             a member that prints each record, then commits
 * transform BOOTSTRAP GROUP PROTOCOL FROM TO TXN-ID  copies records from topic to topic in transactions
 * hang BOOTSTRAP TOPIC TXN-ID                        leaves a transaction open until the process is killed
 * </pre>
 *
 * Each of them ends in order when its standard input does.
 */
public final class Clients {
    private static volatile boolean stopped;

    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "consume" -> consume(args[1], args[2], args[3], args[4]);
            case "transform" -> transform(args[1], args[2], args[3], args[4], args[5], args[6]);
            case "hang" -> hang(args[1], args[2], args[3]);
            default -> throw new IllegalArgumentException("no command " + args[0]);
        }
        say("closed");
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static KafkaConsumer<String, String> consumer(String bootstrap, String group, String protocol) {
        Properties config = new Properties();
        config.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        config.put(ConsumerConfig.GROUP_ID_CONFIG, group);
        config.put(ConsumerConfig.GROUP_PROTOCOL_CONFIG, protocol);
        config.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false);
        config.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        config.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed");
        config.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 100);
        config.put(ConsumerConfig.METADATA_MAX_AGE_CONFIG, 2000);
        if (protocol.equals("classic")) {
            // The cooperative assignor is what live conversion to the other protocol is made for.
            config.put(ConsumerConfig.PARTITION_ASSIGNMENT_STRATEGY_CONFIG, "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
            config.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, 6000);
            config.put(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG, 500);
        }
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    /** Wakes a consumer when the standard input ends. */
    private static void stopAtEndOfInput(KafkaConsumer<?, ?> consumer) {
        Thread watcher = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { // Until the end of the input.
                }
            } catch (IOException e) {
                e.printStackTrace();
            }
            stopped = true;
            if (consumer != null) {
                consumer.wakeup();
            }
        });
        watcher.setDaemon(true);
        watcher.start();
    }

    private static void consume(String bootstrap, String group, String protocol, String topic) {
        try (KafkaConsumer<String, String> consumer = consumer(bootstrap, group, protocol)) {
            stopAtEndOfInput(consumer);
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    say("assigned " + consumer.assignment().size());
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    say("revoked " + partitions.size());
                    commit(consumer);
                }

                @Override
                public void onPartitionsLost(Collection<TopicPartition> partitions) {
                    say("lost " + partitions.size());
                }
            });
            try {
                while (!stopped) {
                    ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                    if (records.isEmpty()) {
                        continue;
                    }
                    for (ConsumerRecord<String, String> r : records) {
                        say("record " + r.partition() + " " + r.offset() + " " + r.value());
                    }
                    commit(consumer);
                }
            } catch (WakeupException e) {
                // The loop ends, and close leaves the group.
            }
        }
    }

    /** Commits whatever is going on around, also when the end has been asked for. */
    private static void commit(KafkaConsumer<String, String> consumer) {
        while (true) {
            try {
                consumer.commitSync();
                return;
            } catch (WakeupException e) {
                say("woken in a commit");
            } catch (RebalanceInProgressException e) {
                // A later commit will have these offsets too, at the latest the one before the partitions are given away.
                say("commit put off");
                return;
            } catch (CommitFailedException e) {
                say("commit failed " + e.getMessage());
                return;
            }
        }
    }

    private static void transform(String bootstrap, String group, String protocol, String from, String to, String id) {
        stopAtEndOfInput(null);
        while (!stopped) {
            try (KafkaConsumer<String, String> consumer = consumer(bootstrap, group, protocol);
                 KafkaProducer<String, String> producer = producer(bootstrap, id)) {
                producer.initTransactions();
                say("initialised");
                consumer.subscribe(List.of(from));
                while (!stopped) {
                    step(consumer, producer, to);
                }
            } catch (KafkaException e) {
                // What was under way is aborted by the next initTransactions, and read again from the committed offsets.
                say("again after " + e);
            }
        }
    }

    private static KafkaProducer<String, String> producer(String bootstrap, String id) {
        Properties config = new Properties();
        config.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        config.put(ProducerConfig.TRANSACTIONAL_ID_CONFIG, id);
        config.put(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG, 20000);
        config.put(ProducerConfig.LINGER_MS_CONFIG, 2);
        config.put(ProducerConfig.METADATA_MAX_AGE_CONFIG, 2000);
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    private static void step(KafkaConsumer<String, String> consumer, KafkaProducer<String, String> producer, String to) {
        ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
        if (records.isEmpty()) {
            return;
        }
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        producer.beginTransaction();
        for (ConsumerRecord<String, String> r : records) {
            producer.send(new ProducerRecord<>(to, r.key(), r.value()));
            offsets.put(new TopicPartition(r.topic(), r.partition()), new OffsetAndMetadata(r.offset() + 1));
        }
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        producer.commitTransaction();
        say("committed " + records.count());
    }

    private static void hang(String bootstrap, String topic, String id) throws Exception {
        stopAtEndOfInput(null);
        try (KafkaProducer<String, String> producer = producer(bootstrap, id)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "key", "open")).get();
            say("open");
            while (!stopped) {
                Thread.sleep(100);
            }
        }
    }
}
