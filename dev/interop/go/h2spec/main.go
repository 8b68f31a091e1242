// The cases of h2spec against a server that echoes content: h2spec HTTP_BASE HTTPS_BASE
package main

import (
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"
)

// Longer than a machine stalls.
const limit = 30 * time.Second

// Cases of RFC 7540 that do not apply, with the reason.
var obsolete = map[string]string{
	"http2/5.3.1/1": "RFC 9113 section 5.3.2 deprecates priorities: a dependency of a stream on itself is ignored",
	"http2/5.3.1/2": "RFC 9113 section 5.3.2 deprecates priorities: a dependency of a stream on itself is ignored",
}

// Cases that the server fails by choice in clear text, with the reason.
var choicesInClearText = map[string]string{
	"http2/3.5/2": "a choice: the address serves HTTP/1.1 too, so HTTP/1.1 answers another preface with 400 instead of GOAWAY",
}

func main() {
	if len(os.Args) != 3 {
		fmt.Println("usage: HTTP_BASE HTTPS_BASE")
		os.Exit(2)
	}
	failed := false
	for _, base := range os.Args[1:] {
		if !run(base) {
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

// run runs all cases against one address. It returns whether none failed.
func run(base string) bool {
	address, err := url.Parse(base)
	if err != nil {
		fmt.Println("FAIL address:", err)
		return false
	}
	port, err := strconv.Atoi(address.Port())
	if err != nil {
		fmt.Println("FAIL address:", err)
		return false
	}
	tls := address.Scheme == "https"
	settings := &config.Config{
		Host: address.Hostname(), Port: port, Path: address.Path, Timeout: limit,
		MaxHeaderLen: 4000, Strict: true, TLS: tls, Insecure: true,
	}
	ok := true
	for _, group := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
		group.Test(settings)
		ok = report(group, tls) && ok
	}
	return ok
}

// report prints a line for each case of a group. It returns whether none failed.
func report(group *spec.TestGroup, tls bool) bool {
	ok := true
	for at, test := range append(append([]*spec.TestCase{}, group.Tests...), group.StrictTests...) {
		id := fmt.Sprintf("%s/%d", group.ID(), at+1)
		name := fmt.Sprintf("%s %s", id, test.Desc)
		if tls {
			name += ", TLS"
		}
		reason, isExcluded := obsolete[id]
		if !isExcluded && !tls {
			reason, isExcluded = choicesInClearText[id]
		}
		switch result := test.Result; {
		case result == nil:
			ok = false
			fmt.Printf("FAIL %s: it did not run\n", name)
		case isExcluded && result.Failed:
			fmt.Printf("skipped %s: %s\n", name, reason)
		case result.Skipped:
			fmt.Printf("skipped %s: not applicable to the answer\n", name)
		case result.Failed:
			ok = false
			fmt.Printf("FAIL %s: %s\n", name, strings.ReplaceAll(result.Error.Error(), "\n", " "))
		default:
			fmt.Println("ok", name)
		}
	}
	for _, inner := range group.Groups {
		ok = report(inner, tls) && ok
	}
	return ok
}
