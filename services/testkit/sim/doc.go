// Package sim plays a cluster in one goroutine: storage nodes and controllers with the product's own rules and logs, on a network,
// disks and clocks that fail, all from one seed.
//
// It owns the world and what must hold in it. After every event:
//
//   - a record that was acknowledged with acks=all survives while one member of the ISR or the ELR that has not lost its disk lives;
//   - an epoch has one leader;
//   - logs are equal below the high watermark, and nobody shows a reader what is not committed;
//   - a consumer never goes back, and never sees two records at one offset;
//   - no batch is in a log twice, and an idempotent producer's batches are there in their order and without gaps.
//
// In the end all faults are healed, and everything must come together: leaders, full ISRs, equal logs, and producers and
// consumers that have done their work.
//
// It must never decide anything that the product decides. Where the product's shells are too parallel to be repeated (fetchers,
// heartbeats, the controller's loop), the world plays them, and the rules behind them are the real ones. A seed always leads to
// the same run, whatever machine it is on.
package sim
