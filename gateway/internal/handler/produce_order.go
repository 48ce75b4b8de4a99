package handler

type produceOrder struct{}
