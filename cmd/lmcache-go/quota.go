package main

import (
	"context"
	"maps"
	"net/url"
	"slices"
)

// defaultSalt stands for the empty salt in paths (lmcache 0.5.6, cli/commands/quota).
const defaultSalt = "_default"

// quotaCommand is `lmcache quota` (lmcache 0.5.6, cli/commands/quota).
func quotaCommand() command {
	salt := positional{name: "salt", help: "the cache_salt; " + defaultSalt + ` or "" is the one of requests without a salt`}
	path := func(c *call) string {
		s := c.args[0]
		if s == "" {
			s = defaultSalt
		}
		return "/quota/" + url.PathEscape(s)
	}
	one := func(title, method string, fields ...[2]string) func(context.Context, *call) error {
		return func(ctx context.Context, c *call) error {
			var body any
			if method == "PUT" {
				body = map[string]float64{"limit_gb": c.get("limit-gb").x}
			}
			out, err := c.server.tree(ctx, method, path(c), body)
			if err != nil {
				return err
			}
			r := newReport(title, widthDefault)
			for _, f := range fields {
				r.add(f[0], f[1], out[f[0]])
			}
			return c.emit(r)
		}
	}
	name, limit, status := [2]string{"cache_salt", "Cache salt"}, [2]string{"limit_gb", "Limit (GB)"}, [2]string{"status", "Status"}
	usage, exists := [2]string{"current_usage_gb", "Current usage (GB)"}, [2]string{"exists", "Exists"}
	return toolGroup(
		"quota", "set, get, delete or list limits by cache_salt", exitUsage,
		&tool{
			name: "quota set", summary: "create or change the limit of a salt", args: []positional{salt}, url: defaultURL, required: []string{"limit-gb"},
			rows: []row{{name: "limit-gb", kind: kindFloat, help: "the limit in GiB, not negative"}},
			run:  one("Quota Set", "PUT", name, limit, status),
		},
		&tool{
			name: "quota get", summary: "the limit of a salt and what it uses", args: []positional{salt}, url: defaultURL,
			run: one("Quota Info", "GET", name, limit, usage, exists),
		},
		&tool{
			name: "quota delete", summary: "forget the limit of a salt", args: []positional{salt}, url: defaultURL,
			run: one("Quota Delete", "DELETE", name, status),
		},
		&tool{name: "quota list", summary: "all limits and what they use", url: defaultURL, run: listQuotas},
	)
}

func listQuotas(ctx context.Context, c *call) error {
	out, err := c.server.tree(ctx, "GET", "/quota", nil)
	if err != nil {
		return err
	}
	r := newReport("Quota List", widthQuotas)
	users, _ := out["users"].(map[string]any)
	if len(users) == 0 {
		r.add("info", "Info", "No quotas configured")
	}
	for _, salt := range slices.Sorted(maps.Keys(users)) {
		s := r.section("quotas", "Salt: "+salt)
		s.add("cache_salt", "Cache salt", salt)
		s.add("limit_gb", "Limit (GB)", dig(users[salt], "limit_gb"))
		s.add("current_usage_gb", "Current usage (GB)", dig(users[salt], "current_usage_gb"))
	}
	return c.emit(r)
}
