package main

import "testing"

func FuzzParseTxn(f *testing.F) {
	f.Add([]byte("compare:\n  - {key: a, value: b}\nthen:\n  - put: {key: a, value: c}\n"))
	f.Add([]byte(`{"compare":[{"key":"a","revision":{"less":3}}],"then":[{"delete_range":{"prefix":"x"}}],"else":[{"get":"a"},{"delete_base64":"/w=="}]}`))
	f.Add([]byte("then: [{}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		txn, err := parseTxn(data)
		if err == nil && len(txn.GetSuccess())+len(txn.GetFailure()) == 0 {
			t.Fatal("an empty transaction is accepted")
		}
	})
}
