package multi

import (
	"strconv"
	"strings"
)

// Stat is one figure of a connector's log line.
type Stat struct {
	Key string
	// Value as it is printed: integers without a point.
	Value string
}

// Int and Float make figures; digits are behind the point at most, as Python's
// round leaves them.
func Int(key string, v int64) Stat { return Stat{key, strconv.FormatInt(v, 10)} }

// Float is documented with [Int].
func Float(key string, v float64, digits int) Stat {
	s := strconv.FormatFloat(v, 'f', digits, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(s, "0")
		if strings.HasSuffix(s, ".") {
			s += "0"
		}
	}
	return Stat{key, s}
}

// ChildStats are the figures of one child in an interval.
type ChildStats struct {
	Name  string
	Stats []Stat
}

// Line is the line that vLLM logs of KV transfers, "" when nothing happened:
// the figures of a lone connector, or one Python dict for each child of several
// that has any.
func Line(composed bool, children []ChildStats) string {
	var parts []string
	for _, c := range children {
		if len(c.Stats) == 0 {
			continue
		}
		var in []string
		for _, s := range c.Stats {
			if composed {
				in = append(in, "'"+s.Key+"': "+s.Value)
			} else {
				in = append(in, s.Key+"="+s.Value)
			}
		}
		text := strings.Join(in, ", ")
		if composed {
			text = c.Name + "={" + text + "}"
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 {
		return ""
	}
	return "KV Transfer metrics: " + strings.Join(parts, ", ")
}
