package main

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Rebalances end as soon as all members have heard of them; a static member has this time to return.
const (
	heartbeat = 300 * time.Millisecond
	session   = 60 * time.Second
)

// Member is a member of a group, which runs until it is closed.
type Member struct {
	lock    sync.Mutex
	held    map[int32]bool
	revoked int
	err     error
	leave   func()
}

func newMember() *Member {
	return &Member{held: map[int32]bool{}}
}

func (m *Member) assign(partitions ...int32) {
	m.lock.Lock()
	defer m.lock.Unlock()
	for _, partition := range partitions {
		m.held[partition] = true
	}
}

func (m *Member) revoke(partitions ...int32) {
	m.lock.Lock()
	defer m.lock.Unlock()
	for _, partition := range partitions {
		delete(m.held, partition)
		m.revoked++
	}
}

func (m *Member) fail(err error) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.err = cmp.Or(m.err, err)
}

// state returns the partitions, how many were revoked so far, and an error that ended the member.
func (m *Member) state() ([]int32, int, error) {
	m.lock.Lock()
	defer m.lock.Unlock()
	held := []int32{}
	for partition := range m.held {
		held = append(held, partition)
	}
	slices.Sort(held)
	return held, m.revoked, m.err
}

func (m *Member) revocations() int {
	_, revoked, _ := m.state()
	return revoked
}

// Joiner starts a member.  Without an assignor it uses the client's default; with an instance it is a static member.
type Joiner func(topic, group, assignor, instance string) (*Member, error)

// balanced waits until each member has so many partitions, and returns them.
func balanced(count int, members ...*Member) ([][]int32, error) {
	var shares [][]int32
	err := poll(func() (bool, string, error) {
		shares = nil
		for _, member := range members {
			held, _, err := member.state()
			if err != nil {
				return false, "", err
			}
			shares = append(shares, held)
		}
		done := !slices.ContainsFunc(shares, func(share []int32) bool { return len(share) != count })
		return done, fmt.Sprintf("assignments are %v", shares), nil
	})
	return shares, err
}

func sorted(shares [][]int32) []int32 {
	all := slices.Concat(shares...)
	slices.Sort(all)
	return all
}

// shared lets a second member join and leave.  Returns the partitions of each while there is one, two, and one, and how
// many partitions the first had to give up by then.
func (join Joiner) shared(a Arguments, assignor string) (states [][][]int32, revoked []int, err error) {
	first, err := join(a.Topic, a.Group, assignor, "")
	if err != nil {
		return nil, nil, err
	}
	defer first.leave()
	note := func(count int, members ...*Member) error {
		shares, err := balanced(count, members...)
		slices.SortFunc(shares, slices.Compare)
		states, revoked = append(states, shares), append(revoked, first.revocations())
		return err
	}
	if err := note(a.Partitions, first); err != nil {
		return nil, nil, err
	}
	second, err := join(a.Topic, a.Group, assignor, "")
	if err != nil {
		return nil, nil, err
	}
	err = note(a.Partitions/2, first, second)
	second.leave()
	if err != nil {
		return nil, nil, err
	}
	return states, revoked, note(a.Partitions, first)
}

func (join Joiner) rebalance(a Arguments) (any, error) {
	states, _, err := join.shared(a, "")
	all := [][]int32{}
	for _, shares := range states {
		all = append(all, sorted(shares))
	}
	return all, err
}

func (join Joiner) assignor(name string) Operation {
	return func(a Arguments) (any, error) {
		states, _, err := join.shared(a, name)
		return states, err
	}
}

func (join Joiner) cooperative(a Arguments) (any, error) {
	states, revoked, err := join.shared(a, "cooperative-sticky")
	if err != nil {
		return nil, err
	}
	return []any{sorted(states[1]), revoked[1], revoked[2]}, nil
}

// static lets each of two static members leave and return, and returns how many partitions the other had to give up.
func (join Joiner) static(a Arguments) (any, error) {
	members := []*Member{}
	defer func() {
		for _, member := range members {
			member.leave()
		}
	}()
	enter := func(number int) (*Member, error) {
		return join(a.Topic, a.Group, "range", fmt.Sprint("member-", number))
	}
	for number := range 2 {
		member, err := enter(number)
		if err != nil {
			return nil, err
		}
		members = append(members, member)
		if _, err := balanced(a.Partitions/len(members), members...); err != nil {
			return nil, err
		}
	}
	before, err := balanced(a.Partitions/2, members...)
	if err != nil {
		return nil, err
	}
	results := []any{before}
	for number := range members {
		other := members[1-number]
		revoked := other.revocations()
		members[number].leave()
		member, err := enter(number)
		if err != nil {
			return nil, err
		}
		members[number] = member
		after, err := balanced(a.Partitions/2, members...)
		if err != nil {
			return nil, err
		}
		results = append(results, []any{after, other.revocations() - revoked})
	}
	return results, nil
}

// fenced returns the error of a static member whose place another has taken.
func (join Joiner) fenced(errorCode func(error) int) Operation {
	return func(a Arguments) (any, error) {
		former, err := join(a.Topic, a.Group, "range", "member")
		if err != nil {
			return nil, err
		}
		defer former.leave()
		if _, err := balanced(a.Partitions, former); err != nil {
			return nil, err
		}
		double, err := join(a.Topic, a.Group, "range", "member")
		if err != nil {
			return nil, err
		}
		defer double.leave()
		if _, err := balanced(a.Partitions, double); err != nil {
			return nil, err
		}
		var failure error
		err = poll(func() (bool, string, error) {
			_, _, failure = former.state()
			return failure != nil, "the former member was not fenced", nil
		})
		if err != nil {
			return nil, err
		}
		return errorCode(failure), nil
	}
}
