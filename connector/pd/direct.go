package pd

// SharedMemory names a part of Options.Memory that other processes of this host
// can map: readers of this package then copy from it themselves.
type SharedMemory struct {
	// Path of the file in /dev/shm, or of any file that is mapped shared.
	Path string
	// Addr is where byte 0 of the file is mapped here, Bytes how much of it.
	Addr  uintptr
	Bytes int64
}
