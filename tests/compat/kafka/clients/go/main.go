// Performs scenarios with a client of Kafka for Go: `franz-go`, or `sarama` and the version of Kafka whose protocol it
// uses.  tests/compat/kafka/clients/kit.py describes input and output.  Scenarios have topics of their own, so they run
// side by side.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
	"time"
)

const wait = 40 * time.Second

// SignIn has a credential.  Certificate is that of a service with TLS, or nil.
type SignIn struct {
	Address, Mechanism, User, Password string
	Certificate                        *string
}

// Record is a record to produce, or one that was read.
type Record struct {
	Offset    int64       `json:"offset"`
	Key       *string     `json:"key"`
	Value     *string     `json:"value"`
	Headers   [][2]string `json:"headers"`
	Partition int32       `json:"-"`
	Timestamp int64       `json:"timestamp"`
}

// UnmarshalJSON also reads the partition, which a result does not have.
func (r *Record) UnmarshalJSON(data []byte) error {
	type plain Record
	given := struct {
		*plain
		Partition int32 `json:"partition"`
	}{plain: (*plain)(r)}
	if err := json.Unmarshal(data, &given); err != nil {
		return err
	}
	r.Partition = given.Partition
	return nil
}

// Arguments has the arguments of all operations; each has some of them.
type Arguments struct {
	Topic, Group, Prefix, Codec string
	Partition                   int32
	Partitions, Count           int
	Offset, Timestamp, Before   int64
	Offsets                     []int64
	Configs                     map[string]string
	Names                       []string
	Records                     []Record
	Idempotent                  bool
}

// Operation performs a step and returns its result.
type Operation func(Arguments) (any, error)

// Client has the operations of scenarios, and the code of a service's error, or 0.
type Client struct {
	operations map[string]Operation
	errorCode  func(error) int
}

// failed is a result that ends its scenario.
type failed map[string]string

func (c Client) perform(steps [][2]json.RawMessage) []any {
	results := []any{}
	for _, step := range steps {
		var name string
		var arguments Arguments
		if err := errors.Join(json.Unmarshal(step[0], &name), json.Unmarshal(step[1], &arguments)); err != nil {
			return append(results, failed{"failure": err.Error()})
		}
		operation := c.operations[name]
		if operation == nil {
			return append(results, failed{"missing": name})
		}
		result, err := operation(arguments)
		if err != nil {
			code := c.errorCode(err)
			if code == 0 {
				return append(results, failed{"failure": fmt.Sprintf("%s: %v", name, err)})
			}
			result = map[string]int{"error": code}
		}
		results = append(results, result)
	}
	return results
}

// poll calls a function until it is done, and fails with its text after a while.
func poll(done func() (bool, string, error)) error {
	for deadline := time.Now().Add(wait); ; time.Sleep(10 * time.Millisecond) {
		ok, text, err := done()
		if ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errors.New(text)
		}
	}
}

func makeClient(names []string, signIn SignIn) (Client, error) {
	switch {
	case len(names) == 1 && names[0] == "franz-go":
		return newFranz(signIn)
	case len(names) == 2 && names[0] == "sarama":
		return newSarama(names[1], signIn)
	}
	return Client{}, fmt.Errorf("unknown client %v", names)
}

func main() {
	var given struct {
		SignIn    SignIn `json:"sign_in"`
		Scenarios map[string][][2]json.RawMessage
	}
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		log.Fatal(err)
	}
	client, failure := makeClient(os.Args[1:], given.SignIn)
	results := map[string][]any{}
	var lock sync.Mutex
	var running sync.WaitGroup
	for name, steps := range given.Scenarios {
		running.Go(func() {
			found := []any{failed{"failure": fmt.Sprint(failure)}}
			if failure == nil {
				found = client.perform(steps)
			}
			lock.Lock()
			defer lock.Unlock()
			results[name] = found
		})
	}
	running.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(results); err != nil {
		log.Fatal(err)
	}
}
