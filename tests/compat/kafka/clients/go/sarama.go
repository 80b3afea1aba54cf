package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

var saramaCodecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

var strategies = map[string]func() sarama.BalanceStrategy{
	"range":              sarama.NewBalanceStrategyRange,
	"roundrobin":         sarama.NewBalanceStrategyRoundRobin,
	"cooperative-sticky": sarama.NewBalanceStrategyCooperativeSticky,
}

// scramClient is the conversation that this client leaves to another library.
type scramClient struct {
	hash scram.HashGeneratorFcn
	*scram.ClientConversation
}

func (s *scramClient) Begin(user, password, authorization string) error {
	client, err := s.hash.NewClient(user, password, authorization)
	if err != nil {
		return err
	}
	s.ClientConversation = client.NewConversation()
	return nil
}

type givenToken string

func (t givenToken) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(t)}, nil
}

type saramaClient struct {
	address string
	version sarama.KafkaVersion
	signIn  SignIn
	client  sarama.Client
	admin   sarama.ClusterAdmin
}

func newSarama(version string, signIn SignIn) (Client, error) {
	s := &saramaClient{address: signIn.Address, version: sarama.MaxVersion, signIn: signIn}
	if version != "max" {
		var err error
		if s.version, err = sarama.ParseKafkaVersion(version); err != nil {
			return Client{}, err
		}
	}
	config, err := s.config()
	if err != nil {
		return Client{}, err
	}
	if s.client, err = sarama.NewClient([]string{s.address}, config); err != nil {
		return Client{}, err
	}
	if s.admin, err = sarama.NewClusterAdminFromClient(s.client); err != nil {
		return Client{}, err
	}
	join := Joiner(s.join)
	return Client{errorCode: saramaCode, operations: map[string]Operation{
		"create":               s.create,
		"topics":               s.topics,
		"partitions":           s.partitions,
		"grow":                 s.grow,
		"configs":              s.configs,
		"alter":                s.alter,
		"delete":               s.delete,
		"delete_records":       s.deleteRecords,
		"produce":              s.produce,
		"read":                 s.read,
		"seek":                 s.seek,
		"offsets":              s.offsets,
		"offset_at":            s.offsetAt,
		"consume":              s.consume,
		"committed":            s.committed,
		"reset":                s.reset,
		"forget":               s.forget,
		"groups":               s.groups,
		"group_state":          s.groupState,
		"delete_group":         s.deleteGroup,
		"rebalance":            join.rebalance,
		"range_assignor":       join.assignor("range"),
		"roundrobin_assignor":  join.assignor("roundrobin"),
		"cooperative_assignor": join.cooperative,
		"static_members":       join.static,
		"fenced_member":        join.fenced(saramaCode),
	}}, nil
}

func (s *saramaClient) config() (*sarama.Config, error) {
	config := sarama.NewConfig()
	config.Version = s.version
	config.Net.SASL.Enable = true
	config.Net.SASL.Mechanism = sarama.SASLMechanism(s.signIn.Mechanism)
	config.Net.SASL.User = s.signIn.User
	config.Net.SASL.Password = s.signIn.Password
	switch s.signIn.Mechanism {
	case sarama.SASLTypeSCRAMSHA256:
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: scram.SHA256} }
	case sarama.SASLTypeSCRAMSHA512:
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: scram.SHA512} }
	case sarama.SASLTypeOAuth:
		config.Net.SASL.TokenProvider = givenToken(s.signIn.Password)
	}
	if s.signIn.Certificate != nil {
		trust, err := trusted(*s.signIn.Certificate)
		if err != nil {
			return nil, err
		}
		config.Net.TLS.Enable = true
		config.Net.TLS.Config = trust
	}
	config.Producer.Return.Successes = true
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	return config, nil
}

func saramaCode(err error) int {
	var answered sarama.KError
	if errors.As(err, &answered) {
		return int(answered)
	}
	return 0
}

// --- topics ---

func (s *saramaClient) create(a Arguments) (any, error) {
	detail := sarama.TopicDetail{NumPartitions: int32(a.Partitions), ReplicationFactor: 1, ConfigEntries: map[string]*string{}}
	for name, value := range a.Configs {
		detail.ConfigEntries[name] = &value
	}
	return nil, s.admin.CreateTopic(a.Topic, &detail, false)
}

func (s *saramaClient) topics(a Arguments) (any, error) {
	found, err := s.admin.ListTopics()
	return starting(slices.Collect(maps.Keys(found)), a.Prefix), err
}

func (s *saramaClient) partitions(a Arguments) (any, error) {
	found, err := s.admin.DescribeTopics([]string{a.Topic})
	if err != nil {
		return nil, err
	}
	if found[0].Err != sarama.ErrNoError {
		return nil, found[0].Err
	}
	return len(found[0].Partitions), nil
}

func (s *saramaClient) grow(a Arguments) (any, error) {
	return nil, s.admin.CreatePartitions(a.Topic, int32(a.Partitions), nil, false)
}

func (s *saramaClient) configs(a Arguments) (any, error) {
	resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: a.Topic, ConfigNames: a.Names}
	entries, err := s.admin.DescribeConfig(resource)
	found := map[string]string{}
	for _, one := range entries {
		found[one.Name] = one.Value
	}
	return found, err
}

func (s *saramaClient) alter(a Arguments) (any, error) {
	changes := map[string]sarama.IncrementalAlterConfigsEntry{}
	for name, value := range a.Configs {
		changes[name] = sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}
	}
	return nil, s.admin.IncrementalAlterConfig(sarama.TopicResource, a.Topic, changes, false)
}

func (s *saramaClient) delete(a Arguments) (any, error) {
	return nil, s.admin.DeleteTopic(a.Topic)
}

func (s *saramaClient) deleteRecords(a Arguments) (any, error) {
	if err := s.admin.DeleteRecords(a.Topic, map[int32]int64{a.Partition: a.Before}); err != nil {
		return nil, err
	}
	return s.client.GetOffset(a.Topic, a.Partition, sarama.OffsetOldest)
}

// --- records ---

func (s *saramaClient) produce(a Arguments) (any, error) {
	config, err := s.config()
	if err != nil {
		return nil, err
	}
	config.Producer.Compression = saramaCodecs[a.Codec]
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Idempotent = a.Idempotent
	config.Producer.Flush.Frequency = 20 * time.Millisecond
	if a.Idempotent {
		config.Net.MaxOpenRequests = 1
	}
	producer, err := sarama.NewSyncProducer([]string{s.address}, config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	messages := []*sarama.ProducerMessage{}
	for _, one := range a.Records {
		message := &sarama.ProducerMessage{
			Topic:     a.Topic,
			Partition: one.Partition,
			Timestamp: time.UnixMilli(one.Timestamp),
			Key:       encoderOf(one.Key),
			Value:     encoderOf(one.Value),
		}
		for _, header := range one.Headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(header[0]), Value: []byte(header[1])})
		}
		messages = append(messages, message)
	}
	if err := producer.SendMessages(messages); err != nil {
		var failures sarama.ProducerErrors
		if errors.As(err, &failures) {
			return nil, failures[0].Err
		}
		return nil, err
	}
	places := [][2]int64{}
	for _, one := range messages {
		places = append(places, [2]int64{int64(one.Partition), one.Offset})
	}
	return places, nil
}

func encoderOf(text *string) sarama.Encoder {
	if text == nil {
		return nil
	}
	return sarama.StringEncoder(*text)
}

// taken reads records of a partition from an offset on.
func (s *saramaClient) taken(consumer sarama.Consumer, a Arguments, offset int64) ([]*sarama.ConsumerMessage, error) {
	reader, err := consumer.ConsumePartition(a.Topic, a.Partition, offset)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	found := []*sarama.ConsumerMessage{}
	for end := time.After(wait); len(found) < a.Count; {
		select {
		case one := <-reader.Messages():
			found = append(found, one)
		case err := <-reader.Errors():
			return nil, err
		case <-end:
			return nil, fmt.Errorf("%d of %d records", len(found), a.Count)
		}
	}
	return found, nil
}

func (s *saramaClient) read(a Arguments) (any, error) {
	consumer, err := sarama.NewConsumerFromClient(s.client)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	messages, err := s.taken(consumer, a, a.Offset)
	found := []Record{}
	for _, one := range messages {
		headers := [][2]string{}
		for _, header := range one.Headers {
			headers = append(headers, [2]string{string(header.Key), string(header.Value)})
		}
		found = append(found, Record{
			Offset:    one.Offset,
			Key:       textOf(one.Key),
			Value:     textOf(one.Value),
			Headers:   headers,
			Timestamp: one.Timestamp.UnixMilli(),
		})
	}
	return found, err
}

// seek begins at each offset anew, as users of this client do.
func (s *saramaClient) seek(a Arguments) (any, error) {
	consumer, err := sarama.NewConsumerFromClient(s.client)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	found := [][]int64{}
	for _, offset := range a.Offsets {
		messages, err := s.taken(consumer, a, offset)
		if err != nil {
			return nil, err
		}
		offsets := []int64{}
		for _, one := range messages {
			offsets = append(offsets, one.Offset)
		}
		found = append(found, offsets)
	}
	return found, nil
}

func (s *saramaClient) offsets(a Arguments) (any, error) {
	first, err := s.client.GetOffset(a.Topic, a.Partition, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	end, err := s.client.GetOffset(a.Topic, a.Partition, sarama.OffsetNewest)
	return []int64{first, end}, err
}

func (s *saramaClient) offsetAt(a Arguments) (any, error) {
	return s.client.GetOffset(a.Topic, a.Partition, a.Timestamp)
}

// --- groups ---

// handler gives each message to a function; partitions come and go.
type handler struct {
	member    *Member
	onMessage func(sarama.ConsumerGroupSession, *sarama.ConsumerMessage)
}

func (h handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (h handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h handler) ConsumeClaim(running sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	h.member.assign(claim.Partition())
	defer h.member.revoke(claim.Partition())
	for message := range claim.Messages() {
		h.onMessage(running, message)
	}
	return nil
}

// started returns a member that consumes until it leaves.
func (s *saramaClient) started(
	topic, group string, configure func(*sarama.Config), onMessage func(sarama.ConsumerGroupSession, *sarama.ConsumerMessage),
) (*Member, error) {
	config, err := s.config()
	if err != nil {
		return nil, err
	}
	configure(config)
	consumer, err := sarama.NewConsumerGroup([]string{s.address}, group, config)
	if err != nil {
		return nil, err
	}
	member := newMember()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			if err := consumer.Consume(ctx, []string{topic}, handler{member, onMessage}); err != nil && ctx.Err() == nil {
				member.fail(err)
				return
			}
		}
	})
	running.Go(func() {
		for err := range consumer.Errors() {
			member.fail(err)
		}
	})
	member.leave = func() {
		cancel()
		consumer.Close()
		running.Wait()
	}
	return member, nil
}

func (s *saramaClient) consume(a Arguments) (any, error) {
	type place struct {
		partition int32
		offset    int64
	}
	found := map[place]string{}
	var lock sync.Mutex
	committed := make(chan struct{})
	onMessage := func(running sarama.ConsumerGroupSession, one *sarama.ConsumerMessage) {
		lock.Lock()
		defer lock.Unlock()
		if len(found) < a.Count {
			found[place{one.Partition, one.Offset}] = string(one.Value)
			running.MarkMessage(one, "")
			if len(found) == a.Count {
				running.Commit()
				close(committed)
			}
		}
	}
	member, err := s.started(a.Topic, a.Group, func(*sarama.Config) {}, onMessage)
	if err != nil {
		return nil, err
	}
	err = poll(func() (bool, string, error) {
		_, _, err := member.state()
		select {
		case <-committed:
			return true, "", nil
		default:
			return false, "records are missing", err
		}
	})
	member.leave()
	rows := [][3]any{}
	for _, at := range slices.SortedFunc(maps.Keys(found), func(one, other place) int {
		return cmp.Or(cmp.Compare(one.partition, other.partition), cmp.Compare(one.offset, other.offset))
	}) {
		rows = append(rows, [3]any{at.partition, at.offset, found[at]})
	}
	return rows, err
}

func (s *saramaClient) join(topic, group, assignor, instance string) (*Member, error) {
	configure := func(config *sarama.Config) {
		config.Consumer.Group.Heartbeat.Interval = heartbeat
		config.Consumer.Group.Session.Timeout = session
		config.Consumer.Group.InstanceId = instance
		if assignor != "" {
			config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategies[assignor]()}
		}
	}
	return s.started(topic, group, configure, func(sarama.ConsumerGroupSession, *sarama.ConsumerMessage) {})
}

func (s *saramaClient) committed(a Arguments) (any, error) {
	found := [][2]int64{}
	answer, err := s.admin.ListConsumerGroupOffsets(a.Group, nil)
	if err != nil {
		return nil, err
	}
	if answer.Err != sarama.ErrNoError {
		return nil, answer.Err
	}
	for partition, block := range answer.Blocks[a.Topic] {
		if block.Err != sarama.ErrNoError {
			return nil, block.Err
		}
		if block.Offset >= 0 {
			found = append(found, [2]int64{int64(partition), block.Offset})
		}
	}
	slices.SortFunc(found, func(one, other [2]int64) int { return cmp.Compare(one[0], other[0]) })
	return found, nil
}

func (s *saramaClient) reset(a Arguments) (any, error) {
	offsets := map[string]map[int32]sarama.OffsetAndMetadata{a.Topic: {a.Partition: {Offset: a.Offset, LeaderEpoch: -1}}}
	answer, err := s.admin.AlterConsumerGroupOffsets(a.Group, offsets, nil)
	if err != nil {
		return nil, err
	}
	if code := answer.Errors[a.Topic][a.Partition]; code != sarama.ErrNoError {
		return nil, code
	}
	return nil, nil
}

func (s *saramaClient) forget(a Arguments) (any, error) {
	return nil, s.admin.DeleteConsumerGroupOffset(a.Group, a.Topic, a.Partition)
}

func (s *saramaClient) groups(a Arguments) (any, error) {
	found, err := s.admin.ListConsumerGroups()
	return starting(slices.Collect(maps.Keys(found)), a.Prefix), err
}

func (s *saramaClient) groupState(a Arguments) (any, error) {
	found, err := s.admin.DescribeConsumerGroups([]string{a.Group})
	if err != nil {
		return nil, err
	}
	if found[0].Err != sarama.ErrNoError {
		return nil, found[0].Err
	}
	return strings.ToLower(found[0].State), nil
}

func (s *saramaClient) deleteGroup(a Arguments) (any, error) {
	return nil, s.admin.DeleteConsumerGroup(a.Group)
}
