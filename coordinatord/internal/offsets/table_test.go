package offsets

import (
	"testing"

	"pgregory.net/rapid"
)

// TestTable compares with two plain maps: one for each view.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type key struct {
			group string
			Key
		}
		table := NewTable()
		newest, durable := map[key]*Value{}, map[key]*Value{}
		type change struct {
			key
			v *Value
		}
		var pending []change
		put := func(m map[key]*Value, c change) {
			if c.v == nil {
				delete(m, c.key)
			} else {
				m[c.key] = c.v
			}
		}
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				c := change{key: key{
					rapid.SampledFrom([]string{"g", "h"}).Draw(t, "group"),
					Key{rapid.SampledFrom([]string{"t", "u"}).Draw(t, "topic"), rapid.Int32Range(0, 2).Draw(t, "partition")},
				}}
				if rapid.Bool().Draw(t, "value") {
					c.v = &Value{}
				}
				table.Set(c.group, c.Key, c.v)
				put(newest, c)
				pending = append(pending, c)
			case 2:
				for _, c := range pending {
					table.Commit(c.group, c.Key, c.v)
					put(durable, c)
				}
				pending = nil
			case 3:
				for _, c := range pending {
					table.Revert(c.group, c.Key)
					put(newest, change{c.key, durable[c.key]})
				}
				pending = nil
			}
			for _, g := range []string{"g", "h"} {
				n, d := 0, 0
				for k, v := range table.AllNewest(g) {
					n++
					if newest[key{g, k}] != v || table.Newest(g, k) != v {
						t.Fatalf("newest %v of %s", k, g)
					}
				}
				for k, v := range table.AllDurable(g) {
					d++
					if durable[key{g, k}] != v || table.Durable(g, k) != v {
						t.Fatalf("durable %v of %s", k, g)
					}
				}
				for k := range newest {
					if k.group == g {
						n--
					}
				}
				for k := range durable {
					if k.group == g {
						d--
					}
				}
				if n != 0 || d != 0 || table.Has(g) != table.hasAny(g) {
					t.Fatalf("group %s: %d newest and %d durable too many", g, n, d)
				}
			}
			if table.Len() != len(durable) {
				t.Fatalf("%d durable, counted %d", len(durable), table.Len())
			}
		}
		if len(newest) == 0 && len(durable) == 0 && len(pending) == 0 && len(table.groups) != 0 {
			t.Fatalf("empty groups are left: %v", table.groups)
		}
	})
}

func (t *Table) hasAny(group string) bool {
	for range t.AllNewest(group) {
		return true
	}
	return false
}
