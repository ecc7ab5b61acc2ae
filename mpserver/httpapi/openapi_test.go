package httpapi

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the schema describes is what is served, and nothing else is.
func TestOpenAPI(t *testing.T) {
	h := NewHandler(recordedServer(), Options{})
	r := do(h, "GET", "/openapi.json", "")
	require.Equal(t, "application/json", r.Header.Get("Content-Type"))
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]json.RawMessage
	}
	body := text(t, r)
	require.NoError(t, json.Unmarshal([]byte(body), &doc))
	require.Equal(t, "3.1.0", doc.OpenAPI)
	require.NotContains(t, body, "\n")

	braces := regexp.MustCompile(`\{[^}]*\}`)
	var described, served []string
	for path, methods := range doc.Paths {
		for m := range methods {
			described = append(described, strings.ToUpper(m)+" "+braces.ReplaceAllString(path, "{}"))
		}
	}
	for _, rt := range (&api{server: recordedServer()}).table() {
		for m := range rt.methods {
			if !slices.Contains([]string{"/openapi.json", "/docs", "/redoc"}, rt.path) {
				served = append(served, m+" "+braces.ReplaceAllString(rt.path, "{}"))
			}
		}
	}
	require.ElementsMatch(t, described, served)
	for _, ref := range regexp.MustCompile(`"\$ref":"#/components/schemas/(\w+)"`).FindAllStringSubmatch(body, -1) {
		require.Contains(t, body, `"title":"`+ref[1]+`"`, "a reference leads somewhere")
	}

	for _, path := range []string{"/docs", "/redoc"} {
		r := do(h, "GET", path, "")
		require.Equal(t, "text/html; charset=utf-8", r.Header.Get("Content-Type"))
		page := text(t, r)
		require.Contains(t, page, "<td><b>DELETE</b></td><td><code>/cache/objects</code></td><td>DeleteObjectsRequest</td>")
		require.Contains(t, page, "<td><b>POST</b></td><td><code>/cache/clear</code></td><td>ClearRequest</td>")
		require.Contains(t, page, "?page_token")
		require.NotContains(t, page, "http://", "it loads nothing")
		require.NotContains(t, page, "https://")
	}
}
