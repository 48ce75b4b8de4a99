package txn

import (
	"slices"
	"time"
)

func (m *Machine) list(now time.Time, c *List) []Listed {
	var list []Listed
	for id, s := range m.ids {
		t := s.durable
		switch {
		case t == nil,
			len(c.ProducerIDs) > 0 && !slices.Contains(c.ProducerIDs, t.ProducerID),
			c.ByState && !slices.Contains(c.States, t.State.String()),
			c.LongerThanMs >= 0 && now.UnixMilli()-t.StartMs <= c.LongerThanMs,
			c.Pattern != nil && !c.Pattern.MatchString(id):
			continue
		}
		list = append(list, Listed{ID: id, ProducerID: t.ProducerID, State: t.State.String()})
	}
	return list
}
