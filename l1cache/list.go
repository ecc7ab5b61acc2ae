package l1cache

// links is what a member of a [list] embeds.
type links[T comparable] struct {
	prev, next T
	in         bool
}

// linked is a pointer to something with links.
type linked[T comparable] interface {
	comparable
	links() *links[T]
}

// list is an intrusive list, first in at the front: since a cache has one TTL
// of each kind, that is also the order of deadlines.
type list[T linked[T]] struct {
	front, back T
	len         int
}

func (l *list[T]) push(x T) {
	var none T
	k := x.links()
	k.prev, k.next, k.in = l.back, none, true
	if l.back != none {
		l.back.links().next = x
	} else {
		l.front = x
	}
	l.back = x
	l.len++
}

// remove does nothing when x is not in the list.
func (l *list[T]) remove(x T) {
	var none T
	k := x.links()
	if !k.in {
		return
	}
	if k.prev != none {
		k.prev.links().next = k.next
	} else {
		l.front = k.next
	}
	if k.next != none {
		k.next.links().prev = k.prev
	} else {
		l.back = k.prev
	}
	k.prev, k.next, k.in = none, none, false
	l.len--
}
