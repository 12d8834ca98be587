// A reader of GPACK over the Go code that the Kaitai compiler makes of schema/gpack.ksy.
//
// It speaks the reader protocol of spec/conformance.md: one JSON object a line. `-level structure` leaves the digests
// out, which cost a pass over the file.
package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/kaitai-io/kaitai_struct_go_runtime/kaitai"
)

// A rejection says what is wrong with a file; every other error is a fault of this program.
type rejection struct {
	class string
	rule  string
	cause error
}

func (r rejection) Error() string { return r.cause.Error() }

type message struct {
	Type string `json:"type"`
	Seq  int    `json:"seq"`
	ID   string `json:"id"`
	Path string `json:"path"`
}

func main() {
	level := flag.String("level", "digest", "what to check: structure or digest")
	flag.Parse()
	if err := serve(*level, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func serve(level string, in io.Reader, out io.Writer) error {
	answers := json.NewEncoder(out)
	start := object{
		"type": "start", "protocol": 1, "name": "gpack-kaitai-go", "language": "go", "version": "1", "level": level,
	}
	if err := answers.Encode(start); err != nil {
		return err
	}
	questions := json.NewDecoder(bufio.NewReader(in))
	for {
		var asked message
		if err := questions.Decode(&asked); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if asked.Type == "stop" {
			return nil
		}
		answer := object{"type": "result", "seq": asked.Seq}
		dump, err := read(asked.Path, level == "digest")
		var refused rejection
		switch {
		case errors.As(err, &refused):
			answer["verdict"], answer["class"], answer["message"] = "reject", refused.class, refused.Error()
			if refused.rule != "" {
				answer["rule"] = refused.rule
			}
		case err != nil:
			return fmt.Errorf("%s: %w", asked.ID, err)
		default:
			answer["verdict"], answer["dump"] = "accept", dump
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
}

// read parses a file through the operating system's seek and read; no blob is read but to hash it, in pieces.
func read(path string, digests bool) (object, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	root := NewGpack()
	if err := root.Read(kaitai.NewStream(file), nil, root); err != nil {
		return nil, classify(err)
	}
	dump, err := dumpFile(root)
	if err != nil {
		return nil, classify(err)
	}
	if digests {
		return dump, checkDigests(file, root)
	}
	return dump, nil
}

// classify tells errors of the grammar and the end of the file from those of this program and the disk.
func classify(err error) error {
	var invalid interface {
		kaitai.ValidationFailedError
		SrcPath() string
	}
	var misplaced *os.PathError // a seek before the file's start
	if errors.As(err, &invalid) {
		if rule, ok := newer[invalid.SrcPath()]; ok {
			return rejection{"unsupported", rule, err}
		}
		return rejection{class: "structure", cause: err}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, kaitai.ErrInvalidSizeRequested) || errors.As(err, &misplaced) && misplaced.Op == "seek" {
		return rejection{class: "structure", cause: err}
	}
	return err
}

func checkDigests(file *os.File, root *Gpack) error {
	entries, err := root.Sections()
	if err != nil {
		return classify(err)
	}
	footer, err := root.Footer()
	if err != nil {
		return classify(err)
	}
	for _, entry := range entries {
		sum := sha256.New()
		payload := io.NewSectionReader(file, int64(entry.Offset), int64(entry.Size))
		if n, err := io.Copy(sum, payload); err != nil {
			return err
		} else if n < int64(entry.Size) {
			return rejection{"structure", "section.bounds", fmt.Errorf("section %s ends beyond the end of the file", entry.Name)}
		}
		digest := sum.Sum(nil)
		if !bytes.Equal(digest, entry.Sha256) {
			return rejection{"digest", "section.sha256", fmt.Errorf("section %s: SHA-256 differs", entry.Name)}
		}
		if entry.Kind == uint32(Gpack_SectionKind__ManifestJson) && !bytes.Equal(digest, footer.ManifestSha256) {
			return rejection{"digest", "manifest.sha256", errors.New("the footer's SHA-256 of the manifest differs")}
		}
	}
	return nil
}
