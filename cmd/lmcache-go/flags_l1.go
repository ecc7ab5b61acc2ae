package main

import (
	"github.com/lmcache-go/lmcache-go/internal/bytesize"
	"github.com/lmcache-go/lmcache-go/mpserver"
)

// l1Flags is the table of server-surface 2.3.
func l1Flags() []row {
	const lazyWhy = "the pool is mapped at its full size and its pages are touched in the background; the first ones are ready at once"
	const gdsWhy = "it belongs to --gds-l1-path, which is not served"
	return []row{
		{
			name: "l1-manager", kind: kindAppend, help: "several L1s as JSON",
			stance: refused, why: "one pool in host memory is what there is: use --l1-size-gb and its neighbours",
		},
		{
			name: "l1-size-gb", kind: kindSize, unit: bytesize.GiB,
			help:  "size of the pool in GiB, or with a unit (512MiB, 100GB); default: the smaller of 4 GiB and a quarter of the memory that is left",
			check: checkSize,
			apply: func(o *mpserver.Options, v value) { o.L1.SizeBytes = v.n },
		},
		{name: "l1-use-lazy", kind: kindBool, def: "true", help: "grow the pool progressively", stance: accepted, why: lazyWhy},
		{name: "l1-init-size-gb", kind: kindInt, def: "20", help: "first size of a pool that grows", stance: accepted, why: lazyWhy},
		{
			name: "l1-align-bytes", kind: kindInt, def: "4096", help: "step of object sizes and addresses; a power of two", check: between(1, 1<<30),
			apply: func(o *mpserver.Options, v value) { o.L1.AlignBytes = int(v.n) },
		},
		{
			name: "l1-use-hugepages", kind: kindBool, help: "2 MiB pages",
			stance: refused, why: "not built yet: leave it out",
		},
		{name: "l1-devdax-path", help: "Device-DAX arena", stance: refused, why: "the pool lives in host memory: use --l1-size-gb"},
		{name: "gds-l1-path", help: "GPUDirect Storage arena", stance: refused, why: "the pool lives in host memory: use --l1-size-gb"},
		{name: "gds-l1-use-direct-io", kind: kindBool, def: "true", help: "O_DIRECT for the GDS arena", stance: accepted, why: gdsWhy},
		{
			name: "gds-l1-backend", def: "auto", choices: []string{"auto", "cufile", "hipfile", "mufile", "phx", "ugds"}, help: "library of the GDS arena",
			stance: accepted, why: gdsWhy,
		},
		{
			name: "l1-write-ttl-seconds", kind: kindInt, def: "600", help: "how long a client may fill a reservation", check: between(1, maxSeconds),
			apply: func(o *mpserver.Options, v value) { o.L1.WriteTTL = ttlSeconds(v) },
		},
		{
			name: "l1-read-ttl-seconds", kind: kindInt, def: "300", help: "how long a lookup's hit is held for its retrieve", check: between(1, maxSeconds),
			apply: func(o *mpserver.Options, v value) { o.L1.ReadTTL = ttlSeconds(v) },
		},
		{
			name: "eviction-policy", def: string(mpserver.EvictLRU), choices: []string{"LRU", "ARC", "IsolatedLRU", "noop"},
			help:  "how objects leave a full pool: least recently used; ARC, which keeps what is found again; LRU with a quota per cache_salt (PUT /quota); not at all (the reference has no default)",
			apply: func(o *mpserver.Options, v value) { o.L1.EvictionPolicy = mpserver.EvictionPolicy(v.text) },
		},
		{
			name: "eviction-trigger-watermark", kind: kindFloat, def: "0.8", help: "used fraction from which the background loop evicts",
			check: fraction("a loop that always evicts keeps nothing"),
			apply: func(o *mpserver.Options, v value) { o.L1.TriggerWatermark = v.x },
		},
		{
			name: "eviction-ratio", kind: kindFloat, def: "0.2", help: "fraction of objects that one turn of the loop evicts",
			check: fraction("use --eviction-policy noop to keep everything"),
			apply: func(o *mpserver.Options, v value) { o.L1.EvictionRatio = v.x },
		},
	}
}

func checkSize(v value) string {
	if v.origin != fromDefault && v.origin != unread && v.n < bytesize.MiB {
		return "must be at least 1 MiB (0.001), got " + v.String()
	}
	return ""
}
