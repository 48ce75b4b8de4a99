package replica

import "chancery/services/clients/transactionclient"

// gather collects what the partitions of one request ask a transaction's coordinator, so that they ask together. Each
// partition says once whether it asks. The mutex of its AppendOp guards it; nil collects nothing.
type gather struct {
	left int
	has  []bool
	questions
}

// questions are those of a request, and who is asked.
type questions struct {
	list []transactionclient.Question
	to   func(*transactionclient.Question)
}

// said notes that a partition has said whether it asks. When it was the last one it gives all questions.
func (g *gather) said(i int) questions {
	if g == nil || g.has[i] {
		return questions{}
	}
	g.has[i] = true
	if g.left--; g.left > 0 {
		return questions{}
	}
	all := g.questions
	g.questions = questions{}
	return all
}

// send asks what there is to ask, with one question for each transaction.
func (q questions) send() {
	var merged []*transactionclient.Question
next:
	for i := range q.list {
		for _, m := range merged {
			if m.Same(&q.list[i]) {
				m.Partitions = append(m.Partitions, q.list[i].Partitions...)
				continue next
			}
		}
		merged = append(merged, &q.list[i])
	}
	for _, m := range merged {
		q.to(m)
	}
}

// ask has a partition's question asked: together with those of the request's other partitions, unless these have been asked.
func (op *AppendOp) ask(i int, to func(*transactionclient.Question), q transactionclient.Question) {
	op.mu.Lock()
	if op.gather == nil || op.gather.has[i] {
		op.mu.Unlock()
		to(&q)
		return
	}
	op.gather.list, op.gather.to = append(op.gather.list, q), to
	all := op.gather.said(i)
	op.mu.Unlock()
	all.send()
}

// decided says that a partition has nothing to ask, or not now.
func (op *AppendOp) decided(i int) {
	if op.gather == nil {
		return
	}
	op.mu.Lock()
	all := op.gather.said(i)
	op.mu.Unlock()
	all.send()
}

// Held says that a partition waits for metadata, for which the others must not.
func (op *AppendOp) Held(i int) { op.decided(i) }
