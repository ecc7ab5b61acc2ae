package l1cache

// nilSlot is "no slot": slot 0 of every slab is never handed out.
const nilSlot = 0

const (
	slabPageBits = 10
	slabPageLen  = 1 << slabPageBits
	slabPageMask = slabPageLen - 1
)

// slab hands out numbered records of T. It grows by pages, so that growing
// neither copies nor doubles, and records keep their address. T holds no
// pointers, hence the collector sees one pointer per page of records.
type slab[T any] struct {
	pages []*[slabPageLen]T
	free  []uint32
	next  uint32
}

func (s *slab[T]) at(i uint32) *T { return &s.pages[i>>slabPageBits][i&slabPageMask] }

// get returns a slot whose record holds what its last user left there.
func (s *slab[T]) get() uint32 {
	if n := len(s.free); n > 0 {
		i := s.free[n-1]
		s.free = s.free[:n-1]
		return i
	}
	if s.next == 0 {
		s.next = 1
	}
	if int(s.next>>slabPageBits) == len(s.pages) {
		s.pages = append(s.pages, new([slabPageLen]T))
	}
	i := s.next
	s.next++
	return i
}

func (s *slab[T]) put(i uint32) { s.free = append(s.free, i) }

// live is the number of slots handed out.
func (s *slab[T]) live() int {
	if s.next == 0 {
		return 0
	}
	return int(s.next) - 1 - len(s.free)
}
