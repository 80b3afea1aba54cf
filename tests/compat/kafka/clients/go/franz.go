package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

var balancers = map[string]kgo.GroupBalancer{
	"range":              kgo.RangeBalancer(),
	"roundrobin":         kgo.RoundRobinBalancer(),
	"cooperative-sticky": kgo.CooperativeStickyBalancer(),
}

type franz struct {
	settings []kgo.Opt
	admin    *kadm.Client
}

func newFranz(signIn SignIn) (Client, error) {
	settings := []kgo.Opt{kgo.SeedBrokers(signIn.Address)}
	if signIn.Certificate != nil {
		trust, err := trusted(*signIn.Certificate)
		if err != nil {
			return Client{}, err
		}
		settings = append(settings, kgo.DialTLSConfig(trust))
	}
	scramAuth := scram.Auth{User: signIn.User, Pass: signIn.Password}
	mechanism := map[string]sasl.Mechanism{
		"SCRAM-SHA-256": scramAuth.AsSha256Mechanism(),
		"SCRAM-SHA-512": scramAuth.AsSha512Mechanism(),
		"PLAIN":         plain.Auth{User: signIn.User, Pass: signIn.Password}.AsMechanism(),
		"OAUTHBEARER":   oauth.Auth{Token: signIn.Password}.AsMechanism(),
	}[signIn.Mechanism]
	if mechanism == nil {
		return Client{}, fmt.Errorf("unknown mechanism %s", signIn.Mechanism)
	}
	settings = append(settings, kgo.SASL(mechanism))
	client, err := kgo.NewClient(settings...)
	if err != nil {
		return Client{}, err
	}
	f := &franz{settings, kadm.NewClient(client)}
	join := Joiner(f.join)
	return Client{errorCode: franzCode, operations: map[string]Operation{
		"create":               f.create,
		"topics":               f.topics,
		"partitions":           f.partitions,
		"grow":                 f.grow,
		"configs":              f.configs,
		"alter":                f.alter,
		"delete":               f.delete,
		"delete_records":       f.deleteRecords,
		"produce":              f.produce,
		"read":                 f.read,
		"seek":                 f.seek,
		"offsets":              f.offsets,
		"offset_at":            f.offsetAt,
		"consume":              f.consume,
		"committed":            f.committed,
		"reset":                f.reset,
		"forget":               f.forget,
		"groups":               f.groups,
		"group_state":          f.groupState,
		"delete_group":         f.deleteGroup,
		"rebalance":            join.rebalance,
		"range_assignor":       join.assignor("range"),
		"roundrobin_assignor":  join.assignor("roundrobin"),
		"cooperative_assignor": join.cooperative,
		"static_members":       join.static,
		"fenced_member":        join.fenced(franzCode),
	}}, nil
}

func trusted(certificate string) (*tls.Config, error) {
	text, err := os.ReadFile(certificate)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate", certificate)
	}
	return &tls.Config{RootCAs: pool}, nil
}

func franzCode(err error) int {
	var answered *kerr.Error
	if errors.As(err, &answered) {
		return int(answered.Code)
	}
	return 0
}

func waiting() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), wait)
}

// --- topics ---

func (f *franz) create(a Arguments) (any, error) {
	ctx, cancel := waiting()
	defer cancel()
	configs := map[string]*string{}
	for name, value := range a.Configs {
		configs[name] = &value
	}
	_, err := f.admin.CreateTopic(ctx, int32(a.Partitions), 1, configs, a.Topic)
	return nil, err
}

func (f *franz) topics(a Arguments) (any, error) {
	ctx, cancel := waiting()
	defer cancel()
	found, err := f.admin.ListTopics(kadm.WithAuthorizedOps(ctx)) // without, topics are those of some seconds ago
	return starting(found.Names(), a.Prefix), err
}

func starting(names []string, prefix string) []string {
	found := []string{}
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}

func (f *franz) partitions(a Arguments) (any, error) {
	ctx, cancel := waiting()
	defer cancel()
	found, err := f.admin.ListTopics(kadm.WithAuthorizedOps(ctx), a.Topic)
	return len(found[a.Topic].Partitions), errors.Join(err, found.Error())
}

func (f *franz) grow(a Arguments) (any, error) {
	ctx, cancel := waiting()
	defer cancel()
	answers, err := f.admin.UpdatePartitions(ctx, a.Partitions, a.Topic)
	return nil, errors.Join(err, answers.Error())
}

func (f *franz) configs(a Arguments) (any, error) {
	ctx, cancel := waiting()
	defer cancel()
	described, err := f.admin.DescribeTopicConfigs(ctx, a.Topic)
	if err != nil {
		return nil, err
	}
	resource, err := described.On(a.Topic, nil)
	found := map[string]string{}
	for _, one := range resource.Configs {
		if slices.Contains(a.Names, one.Key) {
			found[one.Key] = one.MaybeValue()
		}
	}
	return found, errors.Join(err, resource.Err)
}

func (f *franz) alter(a Arguments) (any, error) {
	ctx, cancel := waiting()
	defer cancel()
	changes := []kadm.AlterConfig{}
	for name, value := range a.Configs {
		changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value})
	}
	answers, err := f.admin.AlterTopicConfigs(ctx, changes, a.Topic)
	for _, one := range answers {
		err = errors.Join(err, one.Err)
	}
	return nil, err
}

func (f *franz) delete(a Arguments) (any, error) {
	ctx, cancel := waiting()
	defer cancel()
	_, err := f.admin.DeleteTopic(ctx, a.Topic)
	return nil, err
}

func (f *franz) deleteRecords(a Arguments) (any, error) {
	ctx, cancel := waiting()
	defer cancel()
	before := kadm.Offsets{}
	before.AddOffset(a.Topic, a.Partition, a.Before, -1)
	answers, err := f.admin.DeleteRecords(ctx, before)
	if err != nil {
		return nil, err
	}
	answer, found := answers.Lookup(a.Topic, a.Partition)
	if !found {
		return nil, errors.New("no answer")
	}
	return answer.LowWatermark, answer.Err
}

// --- records ---

func (f *franz) produce(a Arguments) (any, error) {
	ctx, cancel := waiting()
	defer cancel()
	settings := append(slices.Clone(f.settings),
		kgo.ProducerBatchCompression(codecs[a.Codec]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(20*time.Millisecond),
		kgo.RequiredAcks(kgo.AllISRAcks()),
	)
	if !a.Idempotent {
		settings = append(settings, kgo.DisableIdempotentWrite())
	}
	client, err := kgo.NewClient(settings...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	made := []*kgo.Record{}
	for _, one := range a.Records {
		record := &kgo.Record{
			Topic:     a.Topic,
			Partition: one.Partition,
			Timestamp: time.UnixMilli(one.Timestamp),
			Key:       bytesOf(one.Key),
			Value:     bytesOf(one.Value),
		}
		for _, header := range one.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: header[0], Value: []byte(header[1])})
		}
		made = append(made, record)
	}
	if err := client.ProduceSync(ctx, made...).FirstErr(); err != nil {
		return nil, err
	}
	places := [][2]int64{}
	for _, one := range made {
		places = append(places, [2]int64{int64(one.Partition), one.Offset})
	}
	return places, nil
}

func bytesOf(text *string) []byte {
	if text == nil {
		return nil
	}
	return []byte(*text)
}

func textOf(data []byte) *string {
	if data == nil {
		return nil
	}
	text := string(data)
	return &text
}

// assigned returns a consumer of one partition.
func (f *franz) assigned(a Arguments, offset int64) (*kgo.Client, error) {
	places := map[string]map[int32]kgo.Offset{a.Topic: {a.Partition: kgo.NewOffset().At(offset)}}
	return kgo.NewClient(append(slices.Clone(f.settings), kgo.ConsumePartitions(places))...)
}

func take(client *kgo.Client, count int) ([]*kgo.Record, error) {
	ctx, cancel := waiting()
	defer cancel()
	found := []*kgo.Record{}
	for len(found) < count {
		fetches := client.PollRecords(ctx, count-len(found))
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("%d of %d records: %w", len(found), count, err)
		}
		found = append(found, fetches.Records()...)
	}
	return found, nil
}

func (f *franz) read(a Arguments) (any, error) {
	client, err := f.assigned(a, a.Offset)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	taken, err := take(client, a.Count)
	found := []Record{}
	for _, one := range taken {
		headers := [][2]string{}
		for _, header := range one.Headers {
			headers = append(headers, [2]string{header.Key, string(header.Value)})
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

func (f *franz) seek(a Arguments) (any, error) {
	client, err := f.assigned(a, 0)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if _, err := take(client, 1); err != nil {
		return nil, err
	}
	found := [][]int64{}
	for _, offset := range a.Offsets {
		client.SetOffsets(map[string]map[int32]kgo.EpochOffset{a.Topic: {a.Partition: {Epoch: -1, Offset: offset}}})
		taken, err := take(client, a.Count)
		if err != nil {
			return nil, err
		}
		offsets := []int64{}
		for _, one := range taken {
			offsets = append(offsets, one.Offset)
		}
		found = append(found, offsets)
	}
	return found, nil
}

func (f *franz) offsets(a Arguments) (any, error) {
	ctx, cancel := waiting()
	defer cancel()
	starts, err := f.admin.ListStartOffsets(ctx, a.Topic)
	if err != nil {
		return nil, err
	}
	ends, err := f.admin.ListEndOffsets(ctx, a.Topic)
	if err != nil {
		return nil, err
	}
	start, _ := starts.Lookup(a.Topic, a.Partition)
	end, _ := ends.Lookup(a.Topic, a.Partition)
	return []int64{start.Offset, end.Offset}, errors.Join(start.Err, end.Err)
}

func (f *franz) offsetAt(a Arguments) (any, error) {
	ctx, cancel := waiting()
	defer cancel()
	found, err := f.admin.ListOffsetsAfterMilli(ctx, a.Timestamp, a.Topic)
	if err != nil {
		return nil, err
	}
	one, _ := found.Lookup(a.Topic, a.Partition)
	return one.Offset, one.Err
}

// --- groups ---

func (f *franz) consume(a Arguments) (any, error) {
	client, err := kgo.NewClient(append(slices.Clone(f.settings),
		kgo.ConsumerGroup(a.Group),
		kgo.ConsumeTopics(a.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
	)...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	taken, err := take(client, a.Count)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(taken, func(one, other *kgo.Record) int {
		return cmp.Or(cmp.Compare(one.Partition, other.Partition), cmp.Compare(one.Offset, other.Offset))
	})
	found := [][3]any{}
	for _, one := range taken {
		found = append(found, [3]any{one.Partition, one.Offset, textOf(one.Value)})
	}
	ctx, cancel := waiting()
	defer cancel()
	return found, client.CommitRecords(ctx, taken...)
}

func (f *franz) join(topic, group, assignor, instance string) (*Member, error) {
	member := newMember()
	revoked := func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { member.revoke(lost[topic]...) }
	settings := append(slices.Clone(f.settings),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.DisableAutoCommit(),
		kgo.HeartbeatInterval(heartbeat),
		kgo.SessionTimeout(session),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, given map[string][]int32) {
			member.assign(given[topic]...)
		}),
		kgo.OnPartitionsRevoked(revoked),
		kgo.OnPartitionsLost(revoked),
	)
	if assignor != "" {
		settings = append(settings, kgo.Balancers(balancers[assignor]))
	}
	if instance != "" {
		settings = append(settings, kgo.InstanceID(instance))
	}
	client, err := kgo.NewClient(settings...)
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			fetches := client.PollFetches(context.Background())
			if fetches.IsClientClosed() {
				return
			}
			if err := fetches.Err(); err != nil {
				member.fail(err)
			}
		}
	}()
	member.leave = func() {
		client.Close()
		<-ended
	}
	return member, nil
}

func (f *franz) committed(a Arguments) (any, error) {
	ctx, cancel := waiting()
	defer cancel()
	answers, err := f.admin.FetchOffsets(ctx, a.Group)
	found := [][2]int64{}
	for _, one := range answers.Sorted() {
		if one.Topic == a.Topic && one.At >= 0 {
			found = append(found, [2]int64{int64(one.Partition), one.At})
		}
	}
	return found, errors.Join(err, answers.Error())
}

func (f *franz) reset(a Arguments) (any, error) {
	ctx, cancel := waiting()
	defer cancel()
	offsets := kadm.Offsets{}
	offsets.AddOffset(a.Topic, a.Partition, a.Offset, -1)
	return nil, f.admin.CommitAllOffsets(ctx, a.Group, offsets)
}

func (f *franz) forget(a Arguments) (any, error) {
	ctx, cancel := waiting()
	defer cancel()
	places := kadm.TopicsSet{}
	places.Add(a.Topic, a.Partition)
	answers, err := f.admin.DeleteOffsets(ctx, a.Group, places)
	return nil, errors.Join(err, answers.Error())
}

func (f *franz) groups(a Arguments) (any, error) {
	ctx, cancel := waiting()
	defer cancel()
	found, err := f.admin.ListGroups(ctx)
	return starting(slices.Collect(maps.Keys(found)), a.Prefix), err
}

func (f *franz) groupState(a Arguments) (any, error) {
	ctx, cancel := waiting()
	defer cancel()
	found, err := f.admin.DescribeGroups(ctx, a.Group)
	return strings.ToLower(found[a.Group].State), errors.Join(err, found.Error())
}

func (f *franz) deleteGroup(a Arguments) (any, error) {
	ctx, cancel := waiting()
	defer cancel()
	_, err := f.admin.DeleteGroup(ctx, a.Group)
	return nil, err
}
