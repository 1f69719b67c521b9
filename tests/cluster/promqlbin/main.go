// Command promqlbin reads PromQL expressions, one a line, and names those that Prometheus would refuse. Only the
// tests use it.
package main

import (
	"bufio"
	"fmt"
	"os"

	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	refused := 0
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if _, err := parser.ParseExpr(lines.Text()); err != nil {
			fmt.Printf("%s: %v\n", lines.Text(), err)
			refused++
		}
	}
	if lines.Err() != nil || refused > 0 {
		os.Exit(1)
	}
}
