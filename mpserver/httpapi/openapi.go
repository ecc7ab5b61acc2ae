package httpapi

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// openAPI describes the routes to tools, with the reference's names of
// operations' parameters and bodies (lmcache 0.5.6, GET /openapi.json).
//
//go:embed openapi.json
var openAPI []byte

// described is what of it is for people.
type described struct {
	Paths map[string]map[string]operation `json:"paths"`
}

type operation struct {
	Parameters []struct {
		Name string `json:"name"`
		In   string `json:"in"`
	} `json:"parameters"`
	RequestBody struct {
		Content map[string]struct {
			Schema struct {
				reference
				AnyOf []reference `json:"anyOf"`
			} `json:"schema"`
		} `json:"content"`
	} `json:"requestBody"`
}

type reference struct {
	Ref string `json:"$ref"`
}

// docsPage needs nothing from anywhere else: a browser on a closed network shows it.
var docsPage = template.Must(template.New("docs").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>LMCache HTTP API</title>
<style>body{font-family:sans-serif;margin:2em}td{padding:.2em 1.5em .2em 0}</style></head>
<body><h1>LMCache HTTP API</h1>
<p>The schema is at <a href="openapi.json">openapi.json</a>.</p>
<table>
{{range .}}<tr><td><b>{{.Method}}</b></td><td><code>{{.Path}}</code></td><td>{{.Takes}}</td></tr>
{{end}}</table></body></html>
`))

func (a *api) docRoutes() []route {
	var compact bytes.Buffer
	var d described
	if err := errors.Join(json.Compact(&compact, openAPI), json.Unmarshal(openAPI, &d)); err != nil {
		panic("httpapi: the embedded openapi.json: " + err.Error()) // a test loads it
	}
	var page bytes.Buffer
	if err := docsPage.Execute(&page, d.rows()); err != nil {
		panic("httpapi: the page of routes: " + err.Error())
	}
	serve := func(contentType string, body []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(http.StatusOK)
			_, _ = w.Write(body) // the client may be gone: nobody else to tell
		}
	}
	html := serve("text/html; charset=utf-8", page.Bytes())
	return []route{
		{path: "/openapi.json", methods: map[string]http.HandlerFunc{http.MethodGet: serve("application/json", compact.Bytes())}},
		{path: "/docs", methods: map[string]http.HandlerFunc{http.MethodGet: html}},
		{path: "/redoc", methods: map[string]http.HandlerFunc{http.MethodGet: html}},
	}
}

// docsRow is a line of the page.
type docsRow struct{ Method, Path, Takes string }

func (d described) rows() (out []docsRow) {
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(d.Paths[path])) {
			op := d.Paths[path][method]
			var takes []string
			for _, p := range op.Parameters {
				if p.In == "query" {
					takes = append(takes, "?"+p.Name)
				}
			}
			for _, c := range op.RequestBody.Content {
				for _, ref := range append(c.Schema.AnyOf, c.Schema.reference) {
					if ref.Ref != "" {
						takes = append(takes, ref.Ref[strings.LastIndex(ref.Ref, "/")+1:])
					}
				}
			}
			out = append(out, docsRow{strings.ToUpper(method), path, strings.Join(takes, " ")})
		}
	}
	return out
}
