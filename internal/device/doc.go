// Package device runs copy plans between the memory of engines and the pool.
// A [Device] is a kind of memory: [CPU] for POSIX shared memory, [Fake] for
// tests, a GPU later. Handlers do not know which.
//
// A [Stream] is a queue of [Job]s that run in order; an instance has two, one
// each way, so that a store that waits for its engine delays no other engine
// and no retrieve. Done says that nothing can touch the job's memory any more,
// and is called exactly once for every job that Submit took.
//
// Registration:
//
//	for _, s := range layout.Storages {
//		m, err := dev.Open(s.Key, s.Bytes)
//		if err != nil {
//			… // close those opened so far; refuse the registration
//		}
//		inst.memory = append(inst.memory, m)
//	}
//	inst.stores, err = dev.NewStream("…")
//	inst.loads, err = dev.NewStream("…")
//
// A store, with the plan of package copyplan for objects that were reserved:
//
//	traits := dev.Traits()
//	ev, err := inst.stores.Submit(&device.Job{
//		Direction: copyplan.Store, Plan: plan, Engine: inst.memory, Pool: arena, After: event,
//		Done: func(err error) {
//			plan.Release()
//			if err != nil {
//				reservation.Abort() // nobody writes there any more
//			} else {
//				reservation.Publish(nil)
//			}
//			if traits.AnswerAtDone {
//				answer(traits.StubEvent, err == nil)
//			}
//		},
//	})
//	switch {
//	case err != nil: // Done will not come
//		plan.Release()
//		reservation.Abort()
//		answer("", false)
//	case !traits.AnswerAtDone:
//		answer(ev, true)
//	}
//
// A retrieve is the same with Load and inst.loads; its Done ends the transfer
// of its leases. A device with CopiesOnly refuses plans that reorder: convert
// those objects first.
//
// The end of an instance: close both streams with a deadline, then its
// memories. A stream that does not end by the deadline still waits for a peer;
// keep its instance in quarantine until the Done calls have come. Its memories
// can be closed at any time: jobs keep what they use.
//
// To read engine memory for other ends (checksums), submit a plan of runs
// ([kvlayout.Layout.GatherOrder]) with a buffer of one's own as the pool: never
// read a client's memory directly, for it can be cut short under the reader.
//
// Every goroutine belongs to the device, or to a stream of the fake, and ends
// with its Close. Done must not wait: other streams need that goroutine.
package device
