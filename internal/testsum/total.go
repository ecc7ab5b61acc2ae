package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
)

// total prints the sum of the tallies in files.
func total(files []string, out io.Writer) error {
	if len(files) == 0 {
		return errors.New("no tally to add up: did every stage fail to start?")
	}
	passed, failed, skipped := 0, 0, 0
	reasons := map[string][]string{}
	fmt.Fprintln(out)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var t tally
		if err := json.Unmarshal(data, &t); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		passed += t.Passed
		failed += t.Failed
		skipped += len(t.Skipped)
		fmt.Fprintf(out, "%-12s %5d passed %5d failed %5d skipped\n", t.Name, t.Passed, t.Failed, len(t.Skipped))
		for _, s := range t.Skipped {
			reasons[s.Reason] = append(reasons[s.Reason], s.Test)
		}
	}
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(out, "skipped: %s\n", why)
		for _, test := range reasons[why] {
			fmt.Fprintf(out, "    %s\n", test)
		}
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	if failed > 0 {
		return errFailed
	}
	return nil
}
