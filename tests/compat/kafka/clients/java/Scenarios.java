import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.BooleanSupplier;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Performs scenarios with Kafka's client for Java; tests/compat/kafka/clients/kit.py describes input and output. */
public class Scenarios {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration WAIT = Duration.ofSeconds(40);
    private static final int SCENARIOS_AT_ONCE = 4; // most wait for members of groups

    private final Map<String, Object> settings = new HashMap<>();
    private final Admin admin;

    public static void main(String[] arguments) throws Exception {
        JsonNode given = JSON.readTree(System.in);
        ObjectNode results = JSON.createObjectNode();
        Scenarios client = new Scenarios(given.get("sign_in"));
        Map<String, Future<ArrayNode>> running = new HashMap<>();
        ExecutorService threads = Executors.newFixedThreadPool(SCENARIOS_AT_ONCE);
        given.get("scenarios").properties().forEach(scenario ->
                running.put(scenario.getKey(), threads.submit(() -> client.perform(scenario.getValue()))));
        for (Map.Entry<String, Future<ArrayNode>> scenario : running.entrySet()) {
            results.set(scenario.getKey(), scenario.getValue().get());
        }
        threads.shutdown();
        client.admin.close();
        System.out.println(JSON.writeValueAsString(results));
    }

    private Scenarios(JsonNode signIn) {
        boolean tls = !signIn.get("certificate").isNull();
        String mechanism = signIn.get("mechanism").asText();
        settings.put("bootstrap.servers", signIn.get("address").asText());
        settings.put("security.protocol", tls ? "SASL_SSL" : "SASL_PLAINTEXT");
        settings.put("sasl.mechanism", mechanism);
        if (tls) {
            settings.put("ssl.truststore.type", "PEM");
            settings.put("ssl.truststore.location", signIn.get("certificate").asText());
        }
        String module = "org.apache.kafka.common.security."
                + (mechanism.equals("PLAIN") ? "plain.PlainLoginModule"
                        : mechanism.equals("OAUTHBEARER") ? "oauthbearer.OAuthBearerLoginModule"
                                : "scram.ScramLoginModule")
                + " required";
        if (mechanism.equals("OAUTHBEARER")) {
            GivenToken.value = signIn.get("password").asText();
            settings.put("sasl.login.callback.handler.class", GivenToken.class);
            settings.put("sasl.jaas.config", module + ";");
        } else {
            settings.put("sasl.jaas.config", module + " username=\"" + signIn.get("user").asText() + "\" password=\""
                    + signIn.get("password").asText() + "\";");
        }
        admin = Admin.create(settings);
    }

    /** A token that was given. */
    public static class GivenToken implements AuthenticateCallbackHandler {
        static String value;

        @Override
        public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {}

        @Override
        public void close() {}

        @Override
        public void handle(Callback[] callbacks) throws UnsupportedCallbackException {
            for (Callback callback : callbacks) {
                if (!(callback instanceof OAuthBearerTokenCallback)) {
                    continue; // extensions: there are none
                }
                long now = System.currentTimeMillis();
                ((OAuthBearerTokenCallback) callback).token(new OAuthBearerToken() {
                    @Override
                    public String value() {
                        return value;
                    }

                    @Override
                    public Set<String> scope() {
                        return Set.of();
                    }

                    @Override
                    public long lifetimeMs() {
                        return now + 3_600_000;
                    }

                    @Override
                    public String principalName() {
                        return "holdfast";
                    }

                    @Override
                    public Long startTimeMs() {
                        return now;
                    }
                });
            }
        }
    }

    private ArrayNode perform(JsonNode steps) {
        ArrayNode results = JSON.createArrayNode();
        for (JsonNode step : steps) {
            try {
                results.add(JSON.valueToTree(operation(step.get(0).asText(), step.get(1))));
            } catch (Exception error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                if (cause instanceof ApiException && Errors.forException(cause) != Errors.UNKNOWN_SERVER_ERROR) {
                    results.add(JSON.createObjectNode().put("error", Errors.forException(cause).code()));
                    continue;
                }
                StringWriter text = new StringWriter();
                error.printStackTrace(new PrintWriter(text));
                results.add(JSON.createObjectNode().put("failure", text.toString()));
                break;
            }
        }
        return results;
    }

    private Object operation(String name, JsonNode given) throws Exception {
        String topic = given.path("topic").asText();
        String group = given.path("group").asText();
        TopicPartition place = new TopicPartition(topic, given.path("partition").asInt());
        int partitions = given.path("partitions").asInt();
        switch (name) {
            case "create": {
                Map<String, String> configs = texts(given.get("configs"));
                NewTopic created = new NewTopic(topic, partitions, (short) 1).configs(configs);
                return got(admin.createTopics(List.of(created)).all());
            }
            case "topics":
                return starting(got(admin.listTopics().names()), given);
            case "partitions":
                return got(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions().size();
            case "grow":
                return got(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(partitions))).all());
            case "delete":
                return got(admin.deleteTopics(List.of(topic)).all());
            case "configs": {
                ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
                Map<String, String> found = new TreeMap<>();
                for (JsonNode one : given.get("names")) {
                    found.put(one.asText(), got(admin.describeConfigs(List.of(resource)).all()).get(resource)
                            .get(one.asText()).value());
                }
                return found;
            }
            case "alter": {
                List<AlterConfigOp> changes = new ArrayList<>();
                texts(given.get("configs")).forEach((key, value) ->
                        changes.add(new AlterConfigOp(new ConfigEntry(key, value), AlterConfigOp.OpType.SET)));
                return got(admin.incrementalAlterConfigs(
                        Map.of(new ConfigResource(ConfigResource.Type.TOPIC, topic), changes)).all());
            }
            case "delete_records":
                return got(admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(given.get("before").asLong())))
                        .lowWatermarks().get(place)).lowWatermark();
            case "produce":
                return produce(topic, given);
            case "read":
                try (KafkaConsumer<String, String> consumer = consumer(null)) {
                    consumer.assign(List.of(place));
                    consumer.seek(place, given.get("offset").asLong());
                    return take(consumer, given.get("count").asInt()).stream().map(Scenarios::described).toList();
                }
            case "seek":
                return seek(place, given);
            case "offsets":
                try (KafkaConsumer<String, String> consumer = consumer(null)) {
                    return List.of(consumer.beginningOffsets(List.of(place)).get(place),
                            consumer.endOffsets(List.of(place)).get(place));
                }
            case "offset_at":
                return got(admin.listOffsets(Map.of(place, OffsetSpec.forTimestamp(given.get("timestamp").asLong())))
                        .partitionResult(place)).offset();
            case "consume":
                return consume(topic, group, given.get("count").asInt());
            case "rebalance":
                return shared(topic, group, partitions, null).states.stream().map(Scenarios::sorted).toList();
            case "range_assignor":
                return shared(topic, group, partitions, RangeAssignor.class).states;
            case "roundrobin_assignor":
                return shared(topic, group, partitions, RoundRobinAssignor.class).states;
            case "cooperative_assignor":
                return cooperative(topic, group, partitions);
            case "static_members":
                return staticMembers(topic, group, partitions);
            case "fenced_member":
                return fencedMember(topic, group, partitions);
            case "committed": {
                List<List<Long>> found = new ArrayList<>();
                got(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata())
                        .forEach((each, offset) -> found.add(List.of((long) each.partition(), offset.offset())));
                found.sort((one, other) -> one.get(0).compareTo(other.get(0)));
                return found;
            }
            case "reset":
                return got(admin.alterConsumerGroupOffsets(
                        group, Map.of(place, new OffsetAndMetadata(given.get("offset").asLong()))).all());
            case "groups": {
                Set<String> names = new TreeSet<>();
                got(admin.listGroups().all()).forEach(one -> names.add(one.groupId()));
                return starting(names, given);
            }
            case "group_state":
                return got(admin.describeConsumerGroups(List.of(group)).all()).get(group).groupState().toString()
                        .toLowerCase();
            case "delete_group":
                return got(admin.deleteConsumerGroups(List.of(group)).all());
            case "forget":
                return got(admin.deleteConsumerGroupOffsets(group, Set.of(place)).all());
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private List<List<Object>> produce(String topic, JsonNode given) throws Exception {
        Map<String, Object> own = new HashMap<>(settings);
        own.put("compression.type", given.get("codec").asText());
        own.put("enable.idempotence", given.get("idempotent").asBoolean());
        own.put("acks", given.get("acks").asText());
        own.put("linger.ms", 20);
        own.put("key.serializer", StringSerializer.class);
        own.put("value.serializer", StringSerializer.class);
        List<List<Object>> places = new ArrayList<>();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(own)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode one : given.get("records")) {
                ProducerRecord<String, String> made = new ProducerRecord<>(topic, one.get("partition").asInt(),
                        one.get("timestamp").asLong(), one.get("key").textValue(), one.get("value").textValue());
                for (JsonNode header : one.get("headers")) {
                    String value = header.get(1).textValue();
                    made.headers().add(header.get(0).asText(),
                            value == null ? null : value.getBytes(StandardCharsets.UTF_8));
                }
                sent.add(producer.send(made));
            }
            for (Future<RecordMetadata> one : sent) {
                places.add(List.of(one.get().partition(), one.get().offset()));
            }
        }
        return places;
    }

    private List<List<Long>> seek(TopicPartition place, JsonNode given) {
        List<List<Long>> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(null)) {
            consumer.assign(List.of(place));
            take(consumer, 1);
            for (JsonNode offset : given.get("offsets")) {
                consumer.seek(place, offset.asLong());
                found.add(take(consumer, given.get("count").asInt()).stream().map(ConsumerRecord::offset).toList());
            }
        }
        return found;
    }

    private List<List<Object>> consume(String topic, String group, int count) {
        List<List<Object>> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer(group)) {
            consumer.subscribe(List.of(topic));
            TreeMap<List<Long>, String> values = new TreeMap<>((one, other) -> {
                int partitions = one.get(0).compareTo(other.get(0));
                return partitions != 0 ? partitions : one.get(1).compareTo(other.get(1));
            });
            for (ConsumerRecord<String, String> one : take(consumer, count)) {
                values.put(List.of((long) one.partition(), one.offset()), one.value());
            }
            values.forEach((at, value) -> found.add(List.of(at.get(0), at.get(1), value)));
            consumer.commitSync();
        }
        return found;
    }

    /** A member of a group, which polls in a thread of its own until it is closed. */
    private final class Member implements ConsumerRebalanceListener, AutoCloseable {
        private final KafkaConsumer<String, String> consumer;
        private final Thread thread = new Thread(this::poll);
        private final Set<Integer> partitions = new TreeSet<>();
        private volatile boolean stopped;
        private int revoked;
        private RuntimeException failure;

        Member(String topic, String group, Class<?> assignor, String instance) {
            Map<String, Object> own = new HashMap<>();
            own.put("heartbeat.interval.ms", 300); // rebalances end as soon as all members have heard of them
            own.put("session.timeout.ms", 60_000); // the time that a static member has to return
            if (assignor != null) {
                own.put("partition.assignment.strategy", List.of(assignor));
            }
            if (instance != null) {
                own.put("group.instance.id", instance);
            }
            consumer = consumer(group, own);
            consumer.subscribe(List.of(topic), this);
            thread.start();
        }

        private void poll() {
            try (consumer) {
                while (!stopped) {
                    consumer.poll(Duration.ofMillis(50));
                }
            } catch (RuntimeException error) {
                synchronized (this) {
                    failure = error;
                }
            }
        }

        @Override
        public synchronized void onPartitionsAssigned(Collection<TopicPartition> given) {
            given.forEach(one -> partitions.add(one.partition()));
        }

        @Override
        public synchronized void onPartitionsRevoked(Collection<TopicPartition> taken) {
            taken.forEach(one -> partitions.remove(one.partition()));
            revoked += taken.size();
        }

        synchronized List<Integer> partitions() {
            return List.copyOf(partitions);
        }

        /** How many partitions it had to give up so far. */
        synchronized int revoked() {
            return revoked;
        }

        /** The error that ended it, or null. */
        synchronized RuntimeException failure() {
            return failure;
        }

        @Override
        public void close() throws InterruptedException {
            stopped = true;
            thread.join();
        }
    }

    /** Waits until each member has so many partitions; returns them. */
    private static List<List<Integer>> balanced(int count, Member... members) throws InterruptedException {
        List<List<Integer>> shares = new ArrayList<>();
        until(() -> {
            shares.clear();
            for (Member member : members) {
                if (member.failure() != null) {
                    throw member.failure();
                }
                shares.add(member.partitions());
            }
            return shares.stream().allMatch(share -> share.size() == count);
        });
        return shares;
    }

    private static void until(BooleanSupplier condition) throws InterruptedException {
        long deadline = System.nanoTime() + WAIT.toNanos();
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("the group did not become as it should");
            }
            Thread.sleep(10);
        }
    }

    private static List<Integer> sorted(List<List<Integer>> shares) {
        return shares.stream().flatMap(List::stream).sorted().toList();
    }

    /** Partitions of each member while there is one, two and one; and how many the first had to give up by then. */
    private record Shared(List<List<List<Integer>>> states, List<Integer> revoked) {}

    private Shared shared(String topic, String group, int partitions, Class<?> assignor) throws Exception {
        Shared found = new Shared(new ArrayList<>(), new ArrayList<>());
        try (Member first = new Member(topic, group, assignor, null)) {
            found.states.add(balanced(partitions, first));
            found.revoked.add(first.revoked());
            try (Member second = new Member(topic, group, assignor, null)) {
                List<List<Integer>> shares = balanced(partitions / 2, first, second);
                shares.sort((one, other) -> one.get(0).compareTo(other.get(0)));
                found.states.add(shares);
                found.revoked.add(first.revoked());
            }
            found.states.add(balanced(partitions, first));
            found.revoked.add(first.revoked());
        }
        return found;
    }

    private List<Object> cooperative(String topic, String group, int partitions) throws Exception {
        Shared found = shared(topic, group, partitions, CooperativeStickyAssignor.class);
        return List.of(sorted(found.states.get(1)), found.revoked.get(1), found.revoked.get(2));
    }

    /** Lets each of two static members leave and return, and counts the partitions that the other had to give up. */
    private List<Object> staticMembers(String topic, String group, int partitions) throws Exception {
        Member[] members = new Member[2];
        try {
            members[0] = new Member(topic, group, RangeAssignor.class, "member-0");
            balanced(partitions, members[0]);
            members[1] = new Member(topic, group, RangeAssignor.class, "member-1");
            List<Object> results = new ArrayList<>();
            results.add(balanced(partitions / 2, members));
            for (int number = 0; number < 2; number++) {
                Member other = members[1 - number];
                int revoked = other.revoked();
                members[number].close();
                members[number] = new Member(topic, group, RangeAssignor.class, "member-" + number);
                results.add(List.of(balanced(partitions / 2, members), other.revoked() - revoked));
            }
            return results;
        } finally {
            for (Member member : members) {
                if (member != null) {
                    member.close();
                }
            }
        }
    }

    /** Error code of a static member whose place another has taken. */
    private int fencedMember(String topic, String group, int partitions) throws Exception {
        try (Member former = new Member(topic, group, RangeAssignor.class, "member")) {
            balanced(partitions, former);
            try (Member twin = new Member(topic, group, RangeAssignor.class, "member")) {
                balanced(partitions, twin);
                until(() -> former.failure() != null);
            }
            return Errors.forException(former.failure()).code();
        }
    }

    private KafkaConsumer<String, String> consumer(String group) {
        return consumer(group, Map.of());
    }

    private KafkaConsumer<String, String> consumer(String group, Map<String, Object> more) {
        Map<String, Object> own = new HashMap<>(settings);
        if (group != null) {
            own.put("group.id", group);
        }
        own.put("auto.offset.reset", "earliest");
        own.put("enable.auto.commit", false);
        own.putAll(more);
        own.put("key.deserializer", StringDeserializer.class);
        own.put("value.deserializer", StringDeserializer.class);
        return new KafkaConsumer<>(own);
    }

    /** Takes the next records, and goes back to the first of each partition that is not among them. */
    private static List<ConsumerRecord<String, String>> take(KafkaConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        Map<TopicPartition, Long> left = new HashMap<>();
        long deadline = System.nanoTime() + WAIT.toNanos();
        while (found.size() < count) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(found.size() + " of " + count + " records");
            }
            for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofMillis(500))) {
                if (found.size() < count) {
                    found.add(one);
                } else {
                    left.putIfAbsent(new TopicPartition(one.topic(), one.partition()), one.offset());
                }
            }
        }
        left.forEach(consumer::seek);
        return found;
    }

    private static Map<String, Object> described(ConsumerRecord<String, String> one) {
        List<List<String>> headers = new ArrayList<>();
        for (Header header : one.headers()) {
            byte[] value = header.value();
            List<String> pair = new ArrayList<>();
            pair.add(header.key());
            pair.add(value == null ? null : new String(value, StandardCharsets.UTF_8));
            headers.add(pair);
        }
        Map<String, Object> described = new HashMap<>();
        described.put("offset", one.offset());
        described.put("key", one.key());
        described.put("value", one.value());
        described.put("headers", headers);
        described.put("timestamp", one.timestamp());
        return described;
    }

    private static <T> T got(KafkaFuture<T> future) throws Exception {
        return future.get(WAIT.toSeconds(), java.util.concurrent.TimeUnit.SECONDS);
    }

    private static List<String> starting(Collection<String> names, JsonNode given) {
        return names.stream().filter(name -> name.startsWith(given.get("prefix").asText())).sorted().toList();
    }

    private static Map<String, String> texts(JsonNode given) {
        Map<String, String> found = new HashMap<>();
        given.properties().forEach(one -> found.put(one.getKey(), one.getValue().asText()));
        return found;
    }
}
