package assignor

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"chancery/services/kafka/uuid"
)

func topic(n int) uuid.UUID { return uuid.UUID{15: byte(n)} }

// group makes a group of members that subscribe to topics 1, 2, ... as listed.
func group(partitions []int, subscriptions ...[]int) Group {
	g := Group{PartitionCount: map[uuid.UUID]int{}, Homogeneous: true}
	for i, n := range partitions {
		g.PartitionCount[topic(i+1)] = n
	}
	for i, s := range subscriptions {
		m := Member{ID: fmt.Sprintf("m%02d", i), Topics: map[uuid.UUID]struct{}{}}
		for _, n := range s {
			m.Topics[topic(n)] = struct{}{}
		}
		g.Homogeneous = g.Homogeneous && len(s) == len(subscriptions[0]) && fmt.Sprint(s) == fmt.Sprint(subscriptions[0])
		g.Members = append(g.Members, m)
	}
	return g
}

func TestAssignments(t *testing.T) {
	all := []int{1, 2}
	static := func(g Group, ids ...string) Group {
		for i, id := range ids {
			g.Members[i].InstanceID = &id
		}
		return g
	}
	for _, tt := range []struct {
		name string
		by   string
		g    Group
		want string
	}{
		{"range", Range, group([]int{3, 2}, all, all), "m00=1:[0 1],2:[0]; m01=1:[2],2:[1]"},
		{"range, more members than partitions", Range, group([]int{1, 2}, all, all, all), "m00=1:[0],2:[0]; m01=2:[1]; m02="},
		{"range, different subscriptions", Range, group([]int{3, 2}, []int{1}, all, []int{2}), "m00=1:[0 1]; m01=1:[2],2:[0]; m02=2:[1]"},
		{"range, static members first by instance", Range, static(group([]int{3, 2}, all, all), "z", "a"), "m00=1:[2],2:[1]; m01=1:[0 1],2:[0]"},
		{"uniform", Uniform, group([]int{3, 2}, all, all), "m00=1:[0 1]; m01=1:[2],2:[0 1]"},
		{"uniform, more members than partitions", Uniform, group([]int{1, 1}, all, all, all), "m00=; m01=1:[0]; m02=2:[0]"},
		{"uniform, different subscriptions", Uniform, group([]int{3, 2}, []int{1}, all, []int{2}), "m00=1:[0 2]; m01=1:[1]; m02=2:[0 1]"},
		{"uniform, nothing to assign", Uniform, group([]int{3}, []int{}, []int{}), "m00=; m01="},
	} {
		out, err := ByName(tt.by)(tt.g)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if got := show(tt.g, out); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

func show(g Group, out map[string]Partitions) string {
	s := ""
	for i, m := range g.Members {
		if i > 0 {
			s += "; "
		}
		s += m.ID + "="
		first := true
		for n := 1; n < 10; n++ {
			if p, ok := out[m.ID][topic(n)]; ok {
				if !first {
					s += ","
				}
				first = false
				s += fmt.Sprint(n, ":", p)
			}
		}
	}
	return s
}

func TestUnknownTopicIsRefused(t *testing.T) {
	for _, name := range []string{Uniform, Range} {
		if _, err := ByName(name)(group([]int{1}, []int{2})); !errors.Is(err, ErrUnknownTopic) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if ByName("other") != nil {
		t.Error("there is an assignor for any name")
	}
}

// TestEveryAssignmentIsWhole assigns for groups that change, on top of what was assigned before: each partition of a
// subscribed topic has exactly one owner, who subscribes to it; loads are as even as the subscriptions allow where all
// subscribe to the same; and what need not move does not.
func TestEveryAssignmentIsWhole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.SampledFrom([]string{Uniform, Range}).Draw(rt, "assignor")
		before := map[string]Partitions{}
		for range rapid.IntRange(1, 6).Draw(rt, "rounds") {
			partitions := rapid.SliceOfN(rapid.IntRange(1, 12), 3, 3).Draw(rt, "partitions")
			same := rapid.Bool().Draw(rt, "same subscriptions")
			common := rapid.SliceOfDistinct(rapid.IntRange(1, 3), rapid.ID[int]).Draw(rt, "common")
			var subscriptions [][]int
			for range rapid.IntRange(1, 6).Draw(rt, "members") {
				s := common
				if !same {
					s = rapid.SliceOfDistinct(rapid.IntRange(1, 3), rapid.ID[int]).Draw(rt, "own")
				}
				subscriptions = append(subscriptions, s)
			}
			g := group(partitions, subscriptions...)
			for i := range g.Members {
				g.Members[i].Target = before[g.Members[i].ID]
			}
			out, err := ByName(name)(g)
			if err != nil {
				rt.Fatal(err)
			}
			checkWhole(rt, g, out)
			if name == Uniform && g.Homogeneous {
				checkEven(rt, g, out)
			}
			before = out
		}
	})
}

func checkWhole(rt *rapid.T, g Group, out map[string]Partitions) {
	owners := map[string]string{}
	for _, m := range g.Members {
		for id, list := range out[m.ID] {
			if _, ok := m.Topics[id]; !ok || len(list) == 0 {
				rt.Fatalf("%s gets %v of %s", m.ID, list, id)
			}
			for _, p := range list {
				key := fmt.Sprint(id, p)
				if owners[key] != "" || int(p) >= g.PartitionCount[id] {
					rt.Fatalf("%s gets %s, which is %s's", m.ID, key, owners[key])
				}
				owners[key] = m.ID
			}
		}
	}
	want := 0
	for id, n := range g.PartitionCount {
		for _, m := range g.Members {
			if _, ok := m.Topics[id]; ok {
				want += n
				break
			}
		}
	}
	if len(owners) != want {
		rt.Fatalf("%d of %d partitions are assigned", len(owners), want)
	}
}

// checkEven makes sure that loads differ by one at most, and that nobody loses anything who had no more than a share.
func checkEven(rt *rapid.T, g Group, out map[string]Partitions) {
	least, most, total := 1<<30, 0, 0
	for _, m := range g.Members {
		n := 0
		for _, list := range out[m.ID] {
			n += len(list)
		}
		total += n
		least, most = min(least, n), max(most, n)
	}
	if most-least > 1 {
		rt.Fatalf("loads from %d to %d", least, most)
	}
	for _, m := range g.Members {
		had, kept := 0, 0
		for id, list := range m.Target {
			if _, ok := m.Topics[id]; !ok {
				continue
			}
			for _, p := range list {
				if int(p) >= g.PartitionCount[id] {
					continue
				}
				had++
				if slices.Contains(out[m.ID][id], p) {
					kept++
				}
			}
		}
		if had <= total/len(g.Members) && kept < had {
			rt.Fatalf("%s had %d, no more than its share, and keeps %d", m.ID, had, kept)
		}
	}
}
