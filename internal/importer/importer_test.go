package importer

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/streamraft/streamraft/client"
	"github.com/streamraft/streamraft/client/clienttest"
	kvv1 "github.com/streamraft/streamraft/proto/streamraft/kv/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func lines(text string) Source { return NewJSONLines("in.jsonl", strings.NewReader(text), 0, nil) }

func TestDecodeLine(t *testing.T) {
	for _, test := range []struct{ in, key, value, problem string }{
		{`{"key":"a","value":"b"}`, "a", "b", ""},
		{`{"key":"a"}`, "a", "", ""},
		{`{"key_base64":"/w==","value_base64":"AAE="}`, "\xff", "\x00\x01", ""},
		{`{"key":"a","value":"b","mod_revision":7}`, "a", "b", ""},
		{`{"value":"b"}`, "", "", "no key"},
		{`{"key":"","value":"b"}`, "", "", "no key"},
		{`{"key":"a","key_base64":"YQ=="}`, "", "", "both key and key_base64"},
		{`{"key":"a","value_base64":"!"}`, "", "", "value_base64"},
		{`{"key":"a","valeu":"b"}`, "", "", "unknown field"},
		{`{"key":"a"} x`, "", "", "something follows"},
		{`{"key":"a"`, "", "", "ends within"},
		{`{"key":3}`, "", "", "not a record"},
		{"{\"key\":\"\xff\"}", "", "", "not UTF-8"},
	} {
		key, value, err := DecodeLine([]byte(test.in))
		if test.problem != "" {
			if err == nil || !strings.Contains(err.Error(), test.problem) {
				t.Errorf("%s: got %v, want %q", test.in, err, test.problem)
			}
		} else if err != nil || string(key) != test.key || string(value) != test.value {
			t.Errorf("%s: got %q, %q, %v", test.in, key, value, err)
		}
	}
}

func TestLongLineIsReadOver(t *testing.T) {
	source := lines(`{"key":"` + strings.Repeat("a", MaxLineBytes) + "\"}\n{\"key\":\"b\"}\n")
	var bad *BadRecordError
	if _, err := source.Next(); !errors.As(err, &bad) || bad.Where != "in.jsonl:1" {
		t.Fatalf("got %v", err)
	}
	if record, err := source.Next(); err != nil || string(record.Key) != "b" {
		t.Fatal(record, err)
	}
	if _, err := source.Next(); err != io.EOF {
		t.Fatal(err)
	}
}

func TestCSV(t *testing.T) {
	text := "\ufeffid,name,size\n1,\"a \"\"b\"\"\nc\",2\n3,x\n,y,1\n4,\"z\" q,1\n5,w,1\n"
	source, err := NewCSV("in.csv", strings.NewReader(text), 0, nil, "id", "name")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		record, err := source.Next()
		if err == io.EOF {
			break
		}
		var bad *BadRecordError
		if errors.As(err, &bad) {
			got = append(got, "bad "+bad.Where)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s=%q", record.Key, record.Value))
	}
	want := `[1="a \"b\"\nc" bad in.csv:4 bad in.csv:5 bad in.csv:6 5="w"]`
	if fmt.Sprint(got) != want {
		t.Fatalf("got %v, want %s", got, want)
	}
	if _, err := NewCSV("in.csv", strings.NewReader("a,b\n"), 0, nil, "", ""); err == nil || !strings.Contains(err.Error(), `no column "key" among "a", "b"`) {
		t.Fatalf("got %v", err)
	}
}

func TestPartKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a#]{0,4}(#[0-9]{8}of[0-9]{8})?[a#]{0,3}(#0000000[0-9]of0000000[0-9])?`).Draw(t, "name")
		if got, _, count := ParseKey(FileKey(name)); got != name || count != 0 {
			t.Fatalf("%q became %q of %d", name, got, count)
		}
		count := rapid.IntRange(2, 12).Draw(t, "count")
		number := rapid.IntRange(0, count-1).Draw(t, "number")
		if gotName, gotNumber, gotCount := ParseKey(PartKey(name, number, count)); gotName != name || gotNumber != number || gotCount != count {
			t.Fatalf("%q part %d of %d became %q %d %d", name, number, count, gotName, gotNumber, gotCount)
		}
	})
}

func newCluster(t *testing.T) (*clienttest.Cluster, *client.Client) {
	t.Helper()
	cluster, err := clienttest.New(3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	c, err := client.Open(t.Context(), client.Options{Endpoints: cluster.Addresses(), BackoffBase: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return cluster, c
}

func writeTree(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTreeThereAndBack(t *testing.T) {
	cluster, c := newCluster(t)
	files := map[string]string{
		"a": "", "b/c": "12345", "b/d": strings.Repeat("x", 8), "b/e": strings.Repeat("y", 9), "big#": strings.Repeat("0123456", 11),
		"b/d#00000000of00000002": "looks like a part", "b/e.txt": "between",
	}
	from := t.TempDir()
	writeTree(t, from, files)
	source, err := NewTree(from, TreeOptions{Prefix: "p/", ChunkBytes: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	var input int
	summary, err := Run(t.Context(), c, source, Options{OnInput: func(n int) { input += n }})
	if err != nil {
		t.Fatal(err)
	}
	if uint64(input) != source.Total() || summary.Records != uint64(cluster.Len()) {
		t.Fatalf("%d of %d bytes, %d records, %d in the cluster", input, source.Total(), summary.Records, cluster.Len())
	}
	to := filepath.Join(t.TempDir(), "new")
	writer, err := NewTreeWriter(to)
	if err != nil {
		t.Fatal(err)
	}
	for record, err := range c.Range(t.Context(), client.RangeOptions{Start: []byte("p/"), End: client.PrefixEnd([]byte("p/"))}) {
		if err != nil {
			t.Fatal(err)
		}
		if err := writer.Add(strings.TrimPrefix(string(record.Key), "p/"), record.Value); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	if writer.Files != len(files) {
		t.Fatalf("%d files, want %d", writer.Files, len(files))
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	if _, err := NewTreeWriter(to); !errors.Is(err, os.ErrExist) {
		t.Fatalf("got %v", err)
	}
}

func TestTreeNamesWhatItCannotRead(t *testing.T) {
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{"a": "1", "z": "2"})
	if err := os.Symlink("a", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	_, c := newCluster(t)
	source, err := NewTree(dir, TreeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	summary, err := Run(t.Context(), c, source, Options{})
	var bad *BadRecordError
	if !errors.As(err, &bad) || !strings.Contains(err.Error(), filepath.Join(dir, "link")+": is a symbolic link") || summary.Records != 1 {
		t.Fatalf("got %+v, %v", summary, err)
	}
	again, err := NewTree(dir, TreeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	var told []string
	summary, err = Run(t.Context(), c, again, Options{SkipBad: true, OnBad: func(err error) { told = append(told, err.Error()) }})
	if err != nil || summary.Records != 2 || summary.Skipped != 1 || len(told) != 1 {
		t.Fatalf("got %+v, %v, %v", summary, told, err)
	}
}

func TestTreeWriterRefuses(t *testing.T) {
	part := func(number, count int) string { return PartKey("f", number, count) }
	for _, test := range []struct {
		keys    []string
		problem string
	}{
		{[]string{"../x"}, "no relative path"},
		{[]string{"/etc/x"}, "no relative path"},
		{[]string{"a/../../x"}, "no relative path"},
		{[]string{"a//b"}, "no relative path"},
		{[]string{"a/"}, "no relative path"},
		{[]string{"a\x00b"}, "no relative path"},
		{[]string{"a", "a/b"}, "its directory cannot be made"},
		{[]string{"f", part(0, 2)}, "written already"},
		{[]string{part(1, 2)}, "before it are missing"},
		{[]string{part(0, 3), part(2, 3)}, "does not follow"},
		{[]string{part(0, 2), part(0, 3)}, "does not follow"},
		{[]string{part(0, 2)}, "only 1 of its 2 parts"},
	} {
		dir := t.TempDir()
		writer, err := NewTreeWriter(filepath.Join(dir, "out"))
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range test.keys {
			if err = writer.Add(key, []byte("v")); err != nil {
				break
			}
		}
		if closeErr := writer.Close(); err == nil {
			err = closeErr
		}
		var bad *BadRecordError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), test.problem) {
			t.Errorf("%q: got %v, want %q", test.keys, err, test.problem)
		}
		if entries, _ := os.ReadDir(dir); len(entries) != 1 {
			t.Errorf("%q: wrote outside", test.keys)
		}
	}
}

func TestRunStopsAtBadLineAndTellsWhatIsWritten(t *testing.T) {
	_, c := newCluster(t)
	text := "{\"key\":\"a\",\"value\":\"1\"}\n\n{\"key\":\"b\",\"value\":\"22\"}\nnonsense\n{\"key\":\"c\"}\n"
	summary, err := Run(t.Context(), c, lines(text), Options{})
	var bad *BadRecordError
	if !errors.As(err, &bad) || bad.Where != "in.jsonl:4" || summary.Records != 2 || summary.Bytes != 5 {
		t.Fatalf("got %+v, %v", summary, err)
	}
	summary, err = Run(t.Context(), c, lines(text), Options{SkipBad: true})
	if err != nil || summary.Records != 3 || summary.Skipped != 1 {
		t.Fatalf("got %+v, %v", summary, err)
	}
}

func TestRunSurvivesLeaderChanges(t *testing.T) {
	cluster, c := newCluster(t)
	n := 0
	cluster.Script(func(int, *kvv1.Write) clienttest.Action {
		n++
		return clienttest.Action{Cut: n%50 == 49}
	})
	var text strings.Builder
	for i := range 500 {
		fmt.Fprintf(&text, "{\"key\":\"k%d\",\"value\":\"%d\"}\n", i%100, i)
	}
	summary, err := Run(t.Context(), c, lines(text.String()), Options{})
	if err != nil || summary.Records != 500 {
		t.Fatalf("got %+v, %v", summary, err)
	}
	for i := range 100 {
		if got, _ := cluster.Value(fmt.Sprintf("k%d", i)); got != fmt.Sprint(400+i) {
			t.Fatalf("k%d is %s, want the last value of the file, %d", i, got, 400+i)
		}
	}
}

func TestRunStopsAtFailedWrite(t *testing.T) {
	cluster, c := newCluster(t)
	cluster.Script(func(_ int, w *kvv1.Write) clienttest.Action {
		if string(w.GetOperation().GetPut().GetKey()) == "b" {
			return clienttest.Action{SkipApply: true, Failure: &kvv1.Failure{Reason: kvv1.Reason_REASON_NO_SPACE, Message: "the disk is full"}}
		}
		return clienttest.Action{}
	})
	summary, err := Run(t.Context(), c, lines("{\"key\":\"a\"}\n{\"key\":\"b\"}\n"), Options{AtMostOnce: true})
	if !errors.Is(err, client.ErrNoSpace) || !strings.Contains(err.Error(), `key "b"`) || summary.Records != 1 {
		t.Fatalf("got %+v, %v", summary, err)
	}
}

func FuzzDecodeLine(f *testing.F) {
	f.Add([]byte(`{"key":"a","value":"b"}`))
	f.Add([]byte(`{"key_base64":"/w==","value_base64":"AAE="}`))
	f.Add([]byte(`{"key":"\ud800"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		key, value, err := DecodeLine(data)
		if err != nil {
			return
		}
		encoded, err := EncodeLine(nil, key, value, 0, false)
		if err != nil {
			t.Fatal(err)
		}
		key2, value2, err := DecodeLine(encoded)
		if err != nil || string(key2) != string(key) || string(value2) != string(value) {
			t.Fatalf("%q %q became %q %q, %v", key, value, key2, value2, err)
		}
	})
}

func FuzzParseKey(f *testing.F) {
	f.Add("a#00000000of00000002")
	f.Add("##00000000of00000002")
	f.Fuzz(func(t *testing.T, key string) {
		name, number, count := ParseKey(key)
		if count > 0 && PartKey(name, number, count) != key {
			t.Fatalf("%q became %q %d %d", key, name, number, count)
		}
		if again, _, n := ParseKey(FileKey(key)); again != key || n != 0 {
			t.Fatalf("%q is stored as %q and read as %q", key, FileKey(key), again)
		}
	})
}
