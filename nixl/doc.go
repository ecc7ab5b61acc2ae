// Package nixl is NIXL for Go: it moves memory between processes and hosts,
// host memory and GPU memory alike, and between memory and files or objects,
// through NVIDIA's NIXL library (1.5, libnixl_capi.so).
//
// The library is loaded at run time, so a program builds and starts without it:
// see [Load] for where it is looked for. `lmcache-go doctor nixl` says what a
// machine has, and `lmcache-go nixl bench` what it reaches.
//
// # The types that matter
//
//   - [Agent]: one name among all that move memory to each other. It has backends
//     ([Backend]: a plugin at work, [UCX] between processes, [POSIX] to files,
//     [ObjectStore] to S3).
//   - [Registration]: memory that the library and peers may touch. Host memory
//     comes from a [HostBuffer] or another owner outside the Go heap, GPU memory
//     is a pointer and a device, files and objects have regions of their own.
//   - [Remote]: a peer whose metadata was loaded ([Agent.Metadata] there,
//     [Agent.AddRemote] here, any channel in between).
//   - [Transfer]: a request from memory here to memory there or back. It is
//     posted, waited for with a context, posted again.
//   - [DescList]: many descriptors that are looked up once and then named by
//     index, such as the blocks of a KV cache.
//
// A pull of one span, without its error checks:
//
//	lib, _ := nixl.Load(nixl.LoadOptions{})
//	agent, _ := nixl.NewAgent(lib, nixl.Config{})
//	ucx, _ := agent.Backend(nixl.UCX{})
//	buf, _ := nixl.MapBuffer(1<<20, nixl.MapOptions{})
//	ucx.Register(buf.Region())
//	peer, _ := agent.AddRemote(ctx, metadataOfPeer, nameOfPeer)
//	t, _ := peer.NewTransfer(nixl.Read, ucx,
//		nixl.Descs{Mem: nixl.DRAM, List: []nixl.Desc{buf.Desc(0, 1<<20)}},
//		nixl.Descs{Mem: nixl.DRAM, List: []nixl.Desc{{Addr: addressAtPeer, Len: 1 << 20}}},
//		nixl.XferOptions{Notif: []byte("done")})
//	err := t.Run(ctx)
//
// # Memory and closing
//
// NIXL cannot stop a transfer: data that was asked for arrives, also after
// everybody has lost interest. So everything here counts its users. Close never
// blocks and may be called in any order; what is still in use ends with its last
// user, Close says so with [ErrBusy], and a Done or Settled channel tells when it
// has happened. Until then the memory must stay, which a HostBuffer sees to by
// itself. [Agent.Close] ends everything that belongs to an agent.
//
// Go heap memory cannot be registered ([ErrGoMemory]): peers would write to it
// after the collector has given it to somebody else.
//
// # Peers that die and come back
//
// A transfer to a dead peer fails with [ErrRemoteDisconnected], [Remote.Lost] is
// closed, and the library is made to forget the peer. AddRemote with the
// metadata of its next start makes a new Remote. Names should be new at each
// start all the same, which the default of [Config] is.
//
// # Goroutines
//
// All methods of all types may be called from several goroutines. What is not
// safe to share is the memory itself: nothing here guards bytes that a transfer
// is moving. With [SyncNone] and with Config.NoProgressThread more is left to
// the caller; see there.
//
// GPU memory works from any goroutine: a thread without a CUDA context gets the
// primary context of the device for the time of the call.
//
// # What NIXL 1.5.1's C API does not reach
//
//   - Exact status codes: it folds nine of the C++ library's into BACKEND. They
//     are asked from an exported C++ function where it is there
//     (Features.ExactStatus); else ErrRemoteDisconnected and its like are not told
//     apart. Creating an agent, a backend, or a transfer from descriptors tells no
//     reason at all: what can be checked before is checked here.
//   - Error texts and the log: the library writes them to stderr
//     (NIXL_LOG_LEVEL, before it is loaded).
//   - Connection data in partial metadata: a peer loads
//     [Agent.ConnectionMetadata] and [Agent.PartialMetadata] one after the other.
//   - Labels of metadata, and with them partial metadata in etcd; the etcd watch
//     timeout, which is 5 s.
//   - num_workers of the agent's configuration: give it to the backend
//     (UCX.Extra).
//   - Reading descriptor lists back, and their serialised form: keep your own.
//   - A parameter for the plugin on transfers from prepared lists: Custom works on
//     those from descriptors only.
//   - A version: it is read from the wheel's folder.
//   - Telemetry events: [Transfer.Telemetry] is there, the rest goes to NIXL's
//     exporters (NIXL_TELEMETRY_EXPORTER).
//   - Cancelling: nothing in NIXL stops a transfer.
//
// C API 0.1, which has a version number, is supported as far as it is public.
package nixl
