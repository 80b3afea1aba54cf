// Topics with the AWS SDK for Java, its verification of notifications, and a listener of Spring Cloud AWS.
//
// Prints a line for each step, "ok NAME" or "failed NAME", with the reason on standard error.  Variables of the
// environment: AWS's own, and CERTIFICATE, the file of the certificate of the service's TLS.

import io.awspring.cloud.sqs.annotation.SnsNotificationMessage;
import io.awspring.cloud.sqs.annotation.SnsNotificationSubject;
import io.awspring.cloud.sqs.annotation.SqsListener;
import io.awspring.cloud.sqs.config.SqsBootstrapConfiguration;
import io.awspring.cloud.sqs.config.SqsMessageListenerContainerFactory;
import io.awspring.cloud.sqs.support.converter.SnsNotification;
import java.io.InputStream;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Import;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.http.ExecutableHttpRequest;
import software.amazon.awssdk.http.HttpExecuteRequest;
import software.amazon.awssdk.http.SdkHttpClient;
import software.amazon.awssdk.http.apache5.Apache5HttpClient;
import software.amazon.awssdk.http.nio.netty.NettyNioAsyncHttpClient;
import software.amazon.awssdk.messagemanager.sns.SnsMessageManager;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.sns.SnsClient;
import software.amazon.awssdk.services.sns.model.AuthorizationErrorException;
import software.amazon.awssdk.services.sns.model.EmptyBatchRequestException;
import software.amazon.awssdk.services.sns.model.InvalidParameterException;
import software.amazon.awssdk.services.sns.model.InvalidParameterValueException;
import software.amazon.awssdk.services.sns.model.MessageAttributeValue;
import software.amazon.awssdk.services.sns.model.NotFoundException;
import software.amazon.awssdk.services.sns.model.PublishBatchRequestEntry;
import software.amazon.awssdk.services.sns.model.SnsException;
import software.amazon.awssdk.services.sns.model.Tag;
import software.amazon.awssdk.services.sqs.SqsAsyncClient;
import software.amazon.awssdk.services.sqs.SqsClient;
import software.amazon.awssdk.services.sqs.model.Message;
import software.amazon.awssdk.services.sqs.model.QueueAttributeName;

public class Topics {
  private static final URI SERVICE = URI.create(System.getenv("AWS_ENDPOINT_URL_SNS"));
  private static final String AWS_HOST = "sns." + System.getenv("AWS_REGION") + ".amazonaws.com";
  private static final int WAIT_SECONDS = 20;

  private interface Step {
    void run() throws Exception;
  }

  private final TrustManager[] trusted = trusted();
  private final SdkHttpClient http = Apache5HttpClient.builder().tlsTrustManagersProvider(() -> trusted).build();
  private final SnsClient sns = SnsClient.builder().httpClient(http).build();
  private final SqsClient sqs = SqsClient.builder().httpClient(http).build();

  private Topics() throws Exception {}

  public static void main(String[] arguments) throws Exception {
    Topics topics = new Topics();
    Map<String, Step> steps = new LinkedHashMap<>();
    steps.put("manages_a_topic", topics::managesATopic);
    steps.put("delivers_envelopes_and_raw_messages", topics::deliversEnvelopesAndRawMessages);
    steps.put("keeps_the_order_of_a_fifo_topic", topics::keepsTheOrderOfAFifoTopic);
    steps.put("manages_subscriptions_in_pages", topics::managesSubscriptionsInPages);
    steps.put("errors_are_typed", topics::errorsAreTyped);
    steps.put("the_message_manager_accepts_signatures", topics::theMessageManagerAcceptsSignatures);
    steps.put("a_spring_listener_gets_notifications", topics::aSpringListenerGetsNotifications);
    for (Map.Entry<String, Step> step : steps.entrySet()) {
      try {
        step.getValue().run();
        System.out.println("ok " + step.getKey());
      } catch (Exception | AssertionError failure) {
        System.out.println("failed " + step.getKey());
        failure.printStackTrace();
      }
    }
    topics.http.close();
  }

  // --- steps --------------------------------------------------------------------------------------------------

  private void managesATopic() {
    String name = newName("manage");
    Tag team = Tag.builder().key("team").value("blue").build();
    String topic = sns.createTopic(it -> it.name(name).attributes(Map.of("DisplayName", "grüße")).tags(team)).topicArn();
    same(topic, sns.createTopic(it -> it.name(name)).topicArn());
    sns.setTopicAttributes(it -> it.topicArn(topic).attributeName("SignatureVersion").attributeValue("2"));
    Map<String, String> attributes = sns.getTopicAttributes(it -> it.topicArn(topic)).attributes();
    same("grüße", attributes.get("DisplayName"));
    same("2", attributes.get("SignatureVersion"));
    sns.tagResource(it -> it.resourceArn(topic).tags(Tag.builder().key("cost").value("").build()));
    sns.untagResource(it -> it.resourceArn(topic).tagKeys("team"));
    same("cost", sns.listTagsForResource(it -> it.resourceArn(topic)).tags().get(0).key());
    sns.addPermission(it -> it.topicArn(topic).label("l").awsAccountIds("111122223333").actionNames("Publish"));
    sns.removePermission(it -> it.topicArn(topic).label("l"));
    sns.deleteTopic(it -> it.topicArn(topic));
    refused(NotFoundException.class, 404, () -> sns.getTopicAttributes(it -> it.topicArn(topic)));
  }

  private void deliversEnvelopesAndRawMessages() {
    String topic = newTopic("deliver", Map.of());
    String filter = "{\"kind\": [{\"prefix\": \"b\"}]}";
    String enveloped = subscribed(topic, Map.of("FilterPolicy", filter), Map.of());
    String raw = subscribed(topic, Map.of("RawMessageDelivery", "true"), Map.of());
    MessageAttributeValue kind = MessageAttributeValue.builder().dataType("String").stringValue("bc").build();
    SdkBytes bytes = SdkBytes.fromByteArray(new byte[] {0, -1});
    MessageAttributeValue binary = MessageAttributeValue.builder().dataType("Binary").binaryValue(bytes).build();
    String text = "grüße <&> \r\n\t 🐘";
    String id = sns.publish(it -> it.topicArn(topic).message(text).messageAttributes(Map.of("kind", kind, "b", binary)))
        .messageId();
    check(received(enveloped).body().contains(id), "the id of the publication is in its envelope");
    Message message = received(raw);
    same(text, message.body());
    same(bytes, message.messageAttributes().get("b").binaryValue());
    PublishBatchRequestEntry good = PublishBatchRequestEntry.builder().id("1").message("one").build();
    PublishBatchRequestEntry bad = PublishBatchRequestEntry.builder().id("2").message("").build();
    var batch = sns.publishBatch(it -> it.topicArn(topic).publishBatchRequestEntries(good, bad));
    same("1", batch.successful().get(0).id());
    same("InvalidParameter", batch.failed().get(0).code());
    same("one", received(raw).body());
  }

  private void keepsTheOrderOfAFifoTopic() {
    String topic = newTopic("order.fifo", Map.of("FifoTopic", "true", "ContentBasedDeduplication", "true"));
    String url = subscribed(topic, Map.of("RawMessageDelivery", "true"), Map.of(QueueAttributeName.FIFO_QUEUE, "true"));
    String first = sns.publish(it -> it.topicArn(topic).message("a").messageGroupId("g")).sequenceNumber();
    same(first, sns.publish(it -> it.topicArn(topic).message("a").messageGroupId("g")).sequenceNumber());
    String second = sns.publish(it -> it.topicArn(topic).message("b").messageGroupId("g")).sequenceNumber();
    check(first.compareTo(second) < 0, "sequence numbers grow");
    same("a", received(url).body());
    same("b", received(url).body());
  }

  private void managesSubscriptionsInPages() {
    String topic = newTopic("pages", Map.of());
    String queue = arnOf(newQueue("page", Map.of()));
    Set<String> made = new HashSet<>();
    for (int number = 0; number < 101; number++) {
      String endpoint = queue + number;
      made.add(sns.subscribe(it -> it.topicArn(topic).protocol("sqs").endpoint(endpoint)).subscriptionArn());
    }
    Set<String> found = new HashSet<>();
    for (var page : sns.listSubscriptionsByTopicPaginator(it -> it.topicArn(topic))) {
      check(page.subscriptions().size() <= 100, "a page has at most 100 subscriptions");
      page.subscriptions().forEach(one -> found.add(one.subscriptionArn()));
    }
    same(made, found);
    check(sns.listSubscriptionsPaginator().subscriptions().stream().count() >= 101, "all subscriptions are listed");
    check(sns.listTopicsPaginator().topics().stream().anyMatch(one -> one.topicArn().equals(topic)), "the topic is listed");
    String one = made.iterator().next();
    String body = "MessageBody";
    sns.setSubscriptionAttributes(it -> it.subscriptionArn(one).attributeName("FilterPolicyScope").attributeValue(body));
    String policy = "{\"a\":{\"b\":[1]}}";
    sns.setSubscriptionAttributes(it -> it.subscriptionArn(one).attributeName("FilterPolicy").attributeValue(policy));
    Map<String, String> attributes = sns.getSubscriptionAttributes(it -> it.subscriptionArn(one)).attributes();
    same(body, attributes.get("FilterPolicyScope"));
    same(policy, attributes.get("FilterPolicy"));
    refused(InvalidParameterException.class, 400, () -> sns.confirmSubscription(it -> it.topicArn(topic).token("0")));
    sns.unsubscribe(it -> it.subscriptionArn(one));
    refused(NotFoundException.class, 404, () -> sns.getSubscriptionAttributes(it -> it.subscriptionArn(one)));
  }

  private void errorsAreTyped() {
    String topic = newTopic("typed", Map.of());
    refused(NotFoundException.class, 404, () -> sns.publish(it -> it.topicArn(topic + "-missing").message("x")));
    refused(InvalidParameterException.class, 400, () -> sns.publish(it -> it.topicArn(topic).message("")));
    MessageAttributeValue number = MessageAttributeValue.builder().dataType("Number").stringValue("x").build();
    refused(InvalidParameterValueException.class, 400,
        () -> sns.publish(it -> it.topicArn(topic).message("x").messageAttributes(Map.of("n", number))));
    refused(EmptyBatchRequestException.class, 400,
        () -> sns.publishBatch(it -> it.topicArn(topic).publishBatchRequestEntries(List.of())));
    String foreign = topic.replaceFirst(":[0-9]{12}:", ":111122223333:");
    refused(AuthorizationErrorException.class, 403, () -> sns.publish(it -> it.topicArn(foreign).message("x")));
  }

  // The manager wants a certificate from AWS's host in its region.  It has it where that name leads to this service;
  // the one who receives has to call it by that name too, because the envelope's URLs are of the host that was called.
  private void theMessageManagerAcceptsSignatures() {
    SdkHttpClient redirected = new RedirectedHttpClient(http);
    Region region = Region.of(System.getenv("AWS_REGION"));
    SqsClient receiver =
        SqsClient.builder().httpClient(redirected).endpointOverride(URI.create("https://" + AWS_HOST)).build();
    try (SnsMessageManager manager = SnsMessageManager.builder().httpClient(redirected).region(region).build()) {
      for (String version : List.of("1", "2")) {
        String topic = newTopic("signed", Map.of("SignatureVersion", version));
        String url = subscribed(topic, Map.of(), Map.of());
        sns.publish(it -> it.topicArn(topic).message("grüße").subject("S"));
        sns.publish(it -> it.topicArn(topic).message("grüße"));
        for (int number = 0; number < 2; number++) {
          String envelope = received(receiver, url).body();
          same("grüße", manager.parseMessage(envelope).message());
          fails("the message is forged", () -> manager.parseMessage(envelope.replace("grüße", "forged")));
        }
        sns.publish(it -> it.topicArn(topic).message("of another host"));
        String other = received(url).body();
        fails("the certificate is that of another host", () -> manager.parseMessage(other));
      }
    }
  }

  private void aSpringListenerGetsNotifications() throws Exception {
    String topic = newTopic("spring", Map.of());
    String url = subscribed(topic, Map.of(), Map.of());
    System.setProperty("queue", url);
    Listening.trusted = trusted;
    try (var context = new AnnotationConfigApplicationContext(Listening.class)) {
      String order = "{\"number\":7,\"item\":\"grüße\"}";
      MessageAttributeValue kind = MessageAttributeValue.builder().dataType("String").stringValue("b").build();
      sns.publish(it -> it.topicArn(topic).message(order).subject("S").messageAttributes(Map.of("kind", kind)));
      same(new Order(7, "grüße"), next("order"));
      same("S", next("subject"));
    }
    String converted = newTopic("converted", Map.of());
    System.setProperty("queue", subscribed(converted, Map.of(), Map.of()));
    try (var context = new AnnotationConfigApplicationContext(ListeningToNotifications.class)) {
      MessageAttributeValue kind = MessageAttributeValue.builder().dataType("String").stringValue("b").build();
      String id = sns.publish(
              it -> it.topicArn(converted).message("{\"number\":8}").messageAttributes(Map.of("kind", kind)))
          .messageId();
      SnsNotification<?> notification = (SnsNotification<?>) next("notification");
      same(id, notification.getMessageId());
      same(converted, notification.getTopicArn());
      same("{\"number\":8}", notification.getMessage());
      same("b", notification.getMessageAttributes().get("kind").getValue());
    }
  }

  // --- Spring -------------------------------------------------------------------------------------------------

  public record Order(int number, String item) {}

  private static final BlockingQueue<Object> HEARD = new LinkedBlockingQueue<>();

  private static Object next(String what) throws InterruptedException {
    Object heard = HEARD.poll(WAIT_SECONDS, TimeUnit.SECONDS);
    check(heard != null, "the listener got no " + what + " within " + WAIT_SECONDS + " s");
    return heard;
  }

  @Import(SqsBootstrapConfiguration.class)
  public static class ListenerConfiguration {
    static TrustManager[] trusted;

    @Bean
    public SqsAsyncClient sqsAsyncClient() {
      return SqsAsyncClient.builder()
          .httpClientBuilder(NettyNioAsyncHttpClient.builder().tlsTrustManagersProvider(() -> trusted))
          .build();
    }

    @Bean
    public SqsMessageListenerContainerFactory<Object> defaultSqsListenerContainerFactory(SqsAsyncClient client) {
      return SqsMessageListenerContainerFactory.builder()
          .sqsAsyncClient(client)
          .configure(options -> options.pollTimeout(Duration.ofSeconds(1)))
          .build();
    }
  }

  public static class Listening extends ListenerConfiguration {
    @SqsListener("${queue}")
    public void listen(@SnsNotificationMessage Order order, @SnsNotificationSubject String subject) {
      HEARD.add(order);
      HEARD.add(subject);
    }
  }

  public static class ListeningToNotifications extends ListenerConfiguration {
    @SqsListener("${queue}")
    public void listen(SnsNotification<String> notification) {
      HEARD.add(notification);
    }
  }

  // --- shared -------------------------------------------------------------------------------------------------

  private static String newName(String what) {
    String[] parts = what.split("\\.", 2);
    return "java-" + parts[0] + "-" + UUID.randomUUID() + (parts.length > 1 ? "." + parts[1] : "");
  }

  private String newTopic(String what, Map<String, String> attributes) {
    return sns.createTopic(it -> it.name(newName(what)).attributes(attributes)).topicArn();
  }

  private String newQueue(String what, Map<QueueAttributeName, String> attributes) {
    String name = newName(attributes.isEmpty() ? what : what + ".fifo");
    return sqs.createQueue(it -> it.queueName(name).attributes(attributes)).queueUrl();
  }

  private String arnOf(String url) {
    return sqs.getQueueAttributes(it -> it.queueUrl(url).attributeNames(QueueAttributeName.QUEUE_ARN))
        .attributes()
        .get(QueueAttributeName.QUEUE_ARN);
  }

  /** Subscribe a new queue that lets the topic in; returns its URL. */
  private String subscribed(String topic, Map<String, String> attributes, Map<QueueAttributeName, String> ofQueue) {
    String url = newQueue("subscribed", ofQueue);
    String queue = arnOf(url);
    String policy = ("{'Statement': [{'Effect': 'Allow', 'Principal': {'Service': 'sns.amazonaws.com'},"
            + "'Action': 'sqs:SendMessage', 'Resource': '%s', 'Condition': {'ArnEquals': {'aws:SourceArn': '%s'}}}]}")
        .formatted(queue, topic).replace('\'', '"');
    sqs.setQueueAttributes(it -> it.queueUrl(url).attributes(Map.of(QueueAttributeName.POLICY, policy)));
    sns.subscribe(it -> it.topicArn(topic).protocol("sqs").endpoint(queue).attributes(attributes));
    return url;
  }

  private Message received(String url) {
    return received(sqs, url);
  }

  private static Message received(SqsClient client, String url) {
    List<Message> messages = client
        .receiveMessage(it -> it.queueUrl(url).waitTimeSeconds(WAIT_SECONDS).messageAttributeNames("All"))
        .messages();
    check(messages.size() == 1, "a message is there");
    client.deleteMessage(it -> it.queueUrl(url).receiptHandle(messages.get(0).receiptHandle()));
    return messages.get(0);
  }

  private static void check(boolean holds, String what) {
    if (!holds) {
      throw new AssertionError("not so: " + what);
    }
  }

  private static void same(Object expected, Object found) {
    check(expected.equals(found), "expected " + expected + ", found " + found);
  }

  private static void fails(String what, Step step) {
    try {
      step.run();
    } catch (Exception expected) {
      return;
    }
    throw new AssertionError("accepted although " + what);
  }

  private static void refused(Class<? extends SnsException> kind, int status, Step step) {
    try {
      step.run();
    } catch (SnsException error) {
      check(kind.isInstance(error), kind.getSimpleName() + ", not " + error);
      same(status, error.statusCode());
      check(error.requestId() != null, "the error has a request id");
      return;
    } catch (Exception other) {
      throw new AssertionError(other);
    }
    throw new AssertionError("no " + kind.getSimpleName());
  }

  private static TrustManager[] trusted() throws Exception {
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null, null);
    try (InputStream file = Files.newInputStream(Path.of(System.getenv("CERTIFICATE")))) {
      store.setCertificateEntry("service", CertificateFactory.getInstance("X.509").generateCertificate(file));
    }
    TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    factory.init(store);
    return factory.getTrustManagers();
  }

  /** Sends requests to AWS's host to the service, with their own Host header. */
  private record RedirectedHttpClient(SdkHttpClient http) implements SdkHttpClient {
    @Override
    public ExecutableHttpRequest prepareRequest(HttpExecuteRequest given) {
      var request = given.httpRequest().toBuilder()
          .putHeader("Host", given.httpRequest().host())
          .host(SERVICE.getHost())
          .port(SERVICE.getPort())
          .build();
      var redirected = HttpExecuteRequest.builder().request(request).metricCollector(given.metricCollector().orElse(null));
      given.contentStreamProvider().ifPresent(redirected::contentStreamProvider);
      return http.prepareRequest(redirected.build());
    }

    @Override
    public void close() {}
  }
}
