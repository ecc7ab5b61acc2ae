package l1cache

// scopes interns scopes: the index holds a small number instead of strings. A
// number is freed with the last object that has it.
type scopes struct {
	ids  map[Scope]uint32
	list []scopeEntry // by id; 0 is never used
	free []uint32

	salts     map[string]*saltEntry
	freeSalts []uint32
}

// saltEntry numbers a salt that has scopes.
type saltEntry struct {
	list uint32 // of recency, with PolicyIsolated
	refs int    // scopes
}

type scopeEntry struct {
	scope Scope
	refs  int
	bytes int64 // of its published objects
	list  uint32
}

func newScopes() scopes {
	return scopes{ids: map[Scope]uint32{}, list: make([]scopeEntry, 1), salts: map[string]*saltEntry{}}
}

// lookup returns the number of a scope that has objects; it never makes one.
func (s *scopes) lookup(sc Scope) (uint32, bool) {
	id, ok := s.ids[sc]
	return id, ok
}

// ref returns the scope's number and adds one reference.
func (s *scopes) ref(sc Scope) uint32 {
	id, ok := s.ids[sc]
	if !ok {
		if n := len(s.free); n > 0 {
			id = s.free[n-1]
			s.free = s.free[:n-1]
		} else {
			id = uint32(len(s.list))
			s.list = append(s.list, scopeEntry{})
		}
		s.list[id].scope, s.list[id].list = sc, s.refSalt(sc.Salt)
		s.ids[sc] = id
	}
	s.list[id].refs++
	return id
}

func (s *scopes) unref(id uint32) {
	e := &s.list[id]
	if e.refs--; e.refs == 0 {
		delete(s.ids, e.scope)
		s.unrefSalt(e.scope.Salt)
		e.scope = Scope{} // drop its strings
		s.free = append(s.free, id)
	}
}

func (s *scopes) of(id uint32) Scope { return s.list[id].scope }

func (s *scopes) refSalt(salt string) (list uint32) {
	e := s.salts[salt]
	if e == nil {
		e = &saltEntry{list: uint32(len(s.salts) + len(s.freeSalts))}
		if n := len(s.freeSalts); n > 0 {
			e.list = s.freeSalts[n-1]
			s.freeSalts = s.freeSalts[:n-1]
		}
		s.salts[salt] = e
	}
	e.refs++
	return e.list
}

func (s *scopes) unrefSalt(salt string) {
	e := s.salts[salt]
	if e.refs--; e.refs == 0 {
		delete(s.salts, salt)
		s.freeSalts = append(s.freeSalts, e.list)
	}
}
