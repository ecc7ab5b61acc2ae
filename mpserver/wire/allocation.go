package wire

// BlockAllocationRecord is one entry of report_block_allocation: blocks and
// tokens that an engine gave to a request.
type BlockAllocationRecord struct {
	RequestID string
	BlockIDs  []int64
	TokenIDs  []int64
}

var allocationNames = []string{"req_id", "new_block_ids", "new_token_ids"}

// DecodeBlockAllocationRecords reads the records of report_block_allocation.
func DecodeBlockAllocationRecords(frame []byte) ([]BlockAllocationRecord, error) {
	r := reader{b: frame}
	var records []BlockAllocationRecord
	r.list("records", func(int) {
		var a BlockAllocationRecord
		r.object("record", allocationNames, 1<<3-1, func(i int) {
			switch i {
			case 0:
				r.set(&a.RequestID)
			case 1:
				a.BlockIDs = r.ints(nil)
			case 2:
				a.TokenIDs = r.ints(nil)
			}
		})
		records = append(records, a)
	})
	if err := r.done(); err != nil {
		return nil, err
	}
	return records, nil
}

// AppendBlockAllocationRecords appends the records of report_block_allocation.
func AppendBlockAllocationRecords(dst []byte, records []BlockAllocationRecord) []byte {
	dst = appendArrayHead(dst, len(records))
	for i := range records {
		a := &records[i]
		dst = appendMapHead(dst, len(allocationNames))
		dst = AppendString(AppendString(dst, "req_id"), a.RequestID)
		dst = AppendInts(AppendString(dst, "new_block_ids"), a.BlockIDs)
		dst = AppendInts(AppendString(dst, "new_token_ids"), a.TokenIDs)
	}
	return dst
}
