// Package metrics holds what the server counts and writes it as Prometheus text.
//
// A [Metrics] is one registry; nothing is global. Handlers call typed methods
// ([Metrics.LookupDone], [Metrics.L1Written], …) or keep an [Op] handle per
// operation. After the first use of a label set no method allocates (the labels of
// transfers past their limit excepted), and all of them may be called from any
// goroutine. State that somebody else already
// counts (bytes in use, open sessions) is not counted twice: it is read once per
// scrape through [Metrics.SetGauges].
//
// Names that begin with lmcache_mp_ are those of the reference (lmcache 0.5.6,
// v1/mp_observability) wherever the meaning is the same; lmcache_go_ is ours.
//
// Label values come from clients, so their number is bounded: past the limits of
// [Options] a new model or salt is counted under [Other].
//
//	m := metrics.New(metrics.Options{InstanceID: "prefiller", Version: "v1.2.3"})
//	m.LookupDone("llama", "", 1024, 512, 2)
//	m.WriteTo(os.Stdout)
package metrics
