module github.com/streamraft/streamraft

go 1.26.0
