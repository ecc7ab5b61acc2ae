package wire

import "fmt"

// MemoryLayoutDesc describes the objects of a group to a peer: one shape and
// dtype name for each tensor in an object.
type MemoryLayoutDesc struct {
	Shapes [][]int64
	DTypes []string
}

var layoutDescNames = []string{"shapes", "dtypes"}

// DecodeGroupLayouts reads the group_layout_descs of p2p_lookup_and_lock: a
// layout for each object group.
func DecodeGroupLayouts(frame []byte) (map[int]MemoryLayoutDesc, error) {
	r := reader{b: frame}
	n := r.fields()
	layouts := make(map[int]MemoryLayoutDesc)
	for range n {
		group := r.int()
		var d MemoryLayoutDesc
		r.object("layout", layoutDescNames, 1<<2-1, func(i int) {
			if i == 0 {
				d.Shapes = nil
				r.list("shapes", func(int) { d.Shapes = append(d.Shapes, r.ints(nil)) })
				return
			}
			d.DTypes = nil
			r.list("dtypes", func(int) { d.DTypes = append(d.DTypes, string(r.str())) })
		})
		if r.err == nil && len(d.Shapes) != len(d.DTypes) {
			r.fail(fmt.Errorf("%w: %d shapes and %d dtypes", ErrValue, len(d.Shapes), len(d.DTypes)))
		}
		if r.err != nil {
			return nil, fmt.Errorf("layouts[%d]: %w", group, r.err)
		}
		layouts[int(group)] = d
	}
	if err := r.done(); err != nil {
		return nil, err
	}
	return layouts, nil
}

// AppendGroupLayouts appends layouts of the groups in the order given.
func AppendGroupLayouts(dst []byte, groups []int, layouts map[int]MemoryLayoutDesc) []byte {
	dst = appendMapHead(dst, len(groups))
	for _, g := range groups {
		d := layouts[g]
		dst = appendMapHead(AppendInt(dst, int64(g)), len(layoutDescNames))
		dst = appendArrayHead(AppendString(dst, "shapes"), len(d.Shapes))
		for _, shape := range d.Shapes {
			dst = AppendInts(dst, shape)
		}
		dst = AppendStrings(AppendString(dst, "dtypes"), d.DTypes)
	}
	return dst
}

// Address is where an object lies for a peer to read
// (TransferChannelAddress of lmcache 0.5.6).
type Address struct {
	// Offset is in bytes from the base of the L1 region.
	Offset int64
	// Size is in bytes.
	Size int64
}

// InvalidAddress says that an object is not there.
var InvalidAddress = Address{Offset: -1}

// Valid reports whether the address names memory.
func (a Address) Valid() bool { return a.Offset >= 0 && a.Size > 0 }

// AppendAddresses appends the reply to p2p_query_lookup_results: one address
// for each key, in order.
func AppendAddresses(dst []byte, addresses []Address) []byte {
	dst = appendArrayHead(dst, len(addresses))
	for _, a := range addresses {
		dst = appendAddress(dst, a)
	}
	return dst
}

// AppendInvalidAddresses appends the reply to p2p_query_lookup_results in which
// none of n objects is there.
func AppendInvalidAddresses(dst []byte, n int) []byte {
	dst = appendArrayHead(dst, n)
	for range n {
		dst = appendAddress(dst, InvalidAddress)
	}
	return dst
}

func appendAddress(dst []byte, a Address) []byte {
	dst = AppendInt(AppendString(appendMapHead(dst, 2), "offset"), a.Offset)
	return AppendInt(AppendString(dst, "size"), a.Size)
}

var addressNames = []string{"offset", "size"}

// DecodeAddresses reads what [AppendAddresses] writes.
func DecodeAddresses(frame []byte) ([]Address, error) {
	r := reader{b: frame}
	var addresses []Address
	r.list("addresses", func(int) {
		var a Address
		r.object("address", addressNames, 1<<2-1, func(i int) {
			if i == 0 {
				a.Offset = r.int()
			} else {
				a.Size = r.int()
			}
		})
		addresses = append(addresses, a)
	})
	if err := r.done(); err != nil {
		return nil, err
	}
	return addresses, nil
}
