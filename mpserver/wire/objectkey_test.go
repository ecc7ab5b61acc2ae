package wire

type goldenObjectKeys struct {
	KVRank []struct {
		WorldSize int    `json:"world_size"`
		WorkerID  int    `json:"worker_id"`
		KVRank    uint32 `json:"kv_rank"`
	} `json:"kv_rank"`
	Derived []struct {
		Request struct {
			ObjectGroup int  `json:"object_group"`
			WorldSize   int  `json:"world_size"`
			WorkerID    *int `json:"worker_id"`
		} `json:"request"`
		Keys []struct {
			ChunkHash  string `json:"chunk_hash"`
			KVRank     uint32 `json:"kv_rank"`
			KeyString  string `json:"key_string"`
			FSFilename string `json:"fs_filename"`
		} `json:"keys"`
	} `json:"derived"`
}
