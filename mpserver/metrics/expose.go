package metrics

import (
	"bytes"
	"fmt"
	"io"
	"strconv"

	vm "github.com/VictoriaMetrics/metrics"
)

// Gauges is the state of the server at one scrape. Everything is a present
// value, in bytes or pieces.
type Gauges struct {
	// Healthy is what /healthcheck says.
	Healthy bool

	// L1 pool: in use (reservations included), mapped so far, configured,
	// reserved but not published, in quarantine.
	L1UsedBytes, L1TotalBytes, L1ConfiguredBytes, L1StagingBytes, L1QuarantinedBytes int64
	// L1Objects is resident chunks, L1LeasedObjects those held for a reader.
	L1Objects, L1LeasedObjects int64
	// EvictionTurns of the watermark loop since the start, and those that found
	// the pool at or above the watermark.
	EvictionTurns, EvictionTurnsTriggered uint64

	ActivePrefetchJobs, ActiveP2PLookupJobs int64
	KVEventLogDepth                         int64
	Sessions, Instances, QueuedRequests     int64
	PromptCacheBytes                        int64

	GPUs []GPU
}

// GPU is one GPU of this machine, and what the server has on it.
type GPU struct {
	UUID, Name, PCIAddress string
	// Device is the label of its transfers, "" while no worker is registered on it.
	Device string
	// MemoryBytes 0 and UsedBytes -1 are unknown, and not written.
	MemoryBytes, UsedBytes                                        int64
	Open                                                          bool
	MappedBytes                                                   int64
	Mappings, Streams, PendingCopies, Workers, QuarantinedWorkers int
}

// SetGauges names the function that tells the present values. It is called once
// per scrape, from the scrape's goroutine, and must not call back.
func (m *Metrics) SetGauges(f func() Gauges) { m.gauges.Store(&f) }

// WriteTo writes everything in the Prometheus text format 0.0.4, TYPE and HELP
// lines included.
func (m *Metrics) WriteTo(w io.Writer) (int64, error) {
	var b bytes.Buffer
	if !m.opts.Hide {
		var series bytes.Buffer
		m.writeGauges(&series)
		m.set.WritePrometheus(&series)
		annotate(&b, series.Bytes())
	}
	var process bytes.Buffer
	fmt.Fprintf(&process, "%s 1\n", series(nameTargetInfo,
		"service_instance_id", m.opts.InstanceID,
		"service_name", "lmcache-go",
		"telemetry_sdk_language", "go",
		"telemetry_sdk_name", "lmcache-go",
		"telemetry_sdk_version", m.opts.Version))
	vm.WriteProcMetrics(&process)
	vm.WriteFDMetrics(&process)
	vm.WriteGoMetrics(&process)
	annotate(&b, process.Bytes())
	return b.WriteTo(w)
}

// writeGauges asks for the present values once and writes them, those that the
// reference always shows without L2 or event bus included.
func (m *Metrics) writeGauges(b *bytes.Buffer) {
	put := func(name string, v float64, labels ...string) {
		b.WriteString(series(name, labels...))
		b.WriteByte(' ')
		b.WriteString(strconv.FormatFloat(v, 'g', -1, 64))
		b.WriteByte('\n')
	}
	for _, name := range []string{nameBusDepth, nameBusLag, nameBusDropped} {
		put(name, 0)
	}
	for _, state := range []string{"active", "draining"} {
		put(nameL2StoreAdapters, 0, "l1_tag", defaultTag, "state", state)
	}
	for _, state := range []string{"active", "draining"} {
		put(nameL2PrefetchAdapts, 0, "state", state)
	}
	f := m.gauges.Load()
	if f == nil {
		return
	}
	g := (*f)()
	ratio := 0.0
	if g.L1TotalBytes > 0 {
		ratio = float64(g.L1UsedBytes) / float64(g.L1TotalBytes)
	}
	l1 := []string{"backend", "dram", "l1_tag", defaultTag}
	put(nameEvictTicks, float64(g.EvictionTurns))
	put(nameEvictTriggered, float64(g.EvictionTurnsTriggered))
	put(nameL1Usage, float64(g.L1UsedBytes), l1...)
	put(nameL1Ratio, ratio, l1...)
	put(nameL1Staging, float64(g.L1StagingBytes), l1...)
	put(namePrefetchJobs, float64(g.ActivePrefetchJobs))
	put(nameP2PJobs, float64(g.ActiveP2PLookupJobs))
	put(nameKVEventDepth, float64(g.KVEventLogDepth))
	put(nameHealthy, oneIf(g.Healthy))
	put(nameL1Total, float64(g.L1TotalBytes), l1...)
	put(nameL1Configured, float64(g.L1ConfiguredBytes), l1...)
	put(nameL1Quarantined, float64(g.L1QuarantinedBytes), l1...)
	put(nameL1Objects, float64(g.L1Objects), l1...)
	put(nameL1Leased, float64(g.L1LeasedObjects), l1...)
	put(nameSessions, float64(g.Sessions))
	put(nameInstances, float64(g.Instances))
	put(nameQueued, float64(g.QueuedRequests))
	put(namePromptCacheBytes, float64(g.PromptCacheBytes))
	for _, f := range gpuFamilies {
		for i := range g.GPUs {
			if v := f.value(&g.GPUs[i]); v >= 0 {
				put(f.name, v, f.labels(&g.GPUs[i])...)
			}
		}
	}
}

// gpuFamilies have a series for each GPU; a value below 0 is not known.
var gpuFamilies = []struct {
	name   string
	value  func(*GPU) float64
	labels func(*GPU) []string
}{
	{nameGPUInfo, func(*GPU) float64 { return 1 }, func(g *GPU) []string {
		return []string{"device", g.Device, "name", g.Name, "pci_address", g.PCIAddress, "uuid", g.UUID}
	}},
	{nameGPUMemory, func(g *GPU) float64 {
		if g.MemoryBytes == 0 {
			return -1
		}
		return float64(g.MemoryBytes)
	}, byUUID},
	{nameGPUUsed, func(g *GPU) float64 { return float64(g.UsedBytes) }, byUUID},
	{nameGPUOpen, func(g *GPU) float64 { return oneIf(g.Open) }, byUUID},
	{nameGPUMapped, func(g *GPU) float64 { return float64(g.MappedBytes) }, byUUID},
	{nameGPUMappings, func(g *GPU) float64 { return float64(g.Mappings) }, byUUID},
	{nameGPUStreams, func(g *GPU) float64 { return float64(g.Streams) }, byUUID},
	{nameGPUPending, func(g *GPU) float64 { return float64(g.PendingCopies) }, byUUID},
	{nameGPUWorkers, func(g *GPU) float64 { return float64(g.Workers) }, byUUID},
	{nameGPUQuarantined, func(g *GPU) float64 { return float64(g.QuarantinedWorkers) }, byUUID},
}

// byUUID labels what changes with the name that stays, however CUDA counts.
func byUUID(g *GPU) []string { return []string{"uuid", g.UUID} }

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

var known = func() map[string]family {
	m := make(map[string]family, len(families))
	for _, f := range families {
		m[f.name] = f
	}
	return m
}()

// annotate copies text, whose series of one family are adjacent, and puts HELP
// and TYPE before each family that has them. The library could write TYPE lines
// by itself, but only through a switch that is global to the process.
func annotate(b *bytes.Buffer, text []byte) {
	last := ""
	for line := range bytes.Lines(text) {
		name := line
		if i := bytes.IndexAny(line, "{ "); i >= 0 {
			name = line[:i]
		}
		f, ok := known[string(name)]
		if !ok {
			f, ok = histogramOf(name)
		}
		if ok && f.name != last {
			fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", f.name, f.help, f.name, f.kind)
			last = f.name
		}
		b.Write(line)
	}
}

// histogramOf finds the histogram that a _bucket, _sum or _count series is of.
func histogramOf(name []byte) (family, bool) {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := bytes.CutSuffix(name, []byte(suffix)); ok {
			f, ok := known[string(base)]
			return f, ok && f.kind == histogram
		}
	}
	return family{}, false
}
