module github.com/lmcache-go/lmcache-go

go 1.26.0

require (
	github.com/NVIDIA/go-nvml v0.12.4-1
	github.com/VictoriaMetrics/metrics v1.45.0
	github.com/hashicorp/golang-lru/v2 v2.0.7
	github.com/pebbe/zmq4 v1.4.0
	github.com/stretchr/testify v1.12.1
	github.com/zeebo/blake3 v0.2.4
	go.uber.org/goleak v1.3.0
	golang.org/x/sys v0.50.0
)

require (
	github.com/klauspost/cpuid/v2 v2.0.12 // indirect
	github.com/valyala/fastrand v1.1.0 // indirect
	github.com/valyala/histogram v1.2.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
