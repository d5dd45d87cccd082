# cython: language_level=3, cdivision=True
"""Compiled versions of what is slow in pure Python: codecs of records and messages, and murmur2.

Records are decoded to objects or to columns, and encoded from either. The broker validates them.

These functions do the common case and return None for everything else: invalid bytes, values of
unusual types, numbers beyond 64 bits. Their callers (`records`, `compiler`, `client/arrow`) then
use pure Python, so that results, errors and error messages are those of one implementation. The
exception is `validate_records`, which says itself what is invalid: hostile input must not cost more
than valid input.

Nothing is read or written unchecked. `p` only moves forward, from the start of the records to their
end, and every byte that is copied has been passed by `p`: no column needs more bytes than the
records have, and that is the size of its buffer.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytearray cimport PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_Check
from cpython.ref cimport Py_INCREF, PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy
from posix.unistd cimport _SC_PAGESIZE, sysconf

from uuid import UUID as _Uuid

cdef extern from "sys/mman.h" nogil:
    # The last parameter is `char *` on macOS, and `unsigned char *` on Linux.
    int mincore(void *address, size_t size, void *residency)

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(void *)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    ctypedef object (*AllocFunction "allocfunc")(type, Py_ssize_t)
    ctypedef struct TupleType "PyTypeObject":
        AllocFunction tp_alloc

ctypedef const uint8_t *Bytes

# The smallest record is seven numbers of one byte, the smallest header two.
cdef enum:
    MIN_RECORD_BYTES = 7
    MIN_HEADER_BYTES = 2
    MAX_VARINT_BYTES = 10
    # The fields of a record: offset, timestamp, key, value, headers.
    STORED_FIELDS = 5
    # The buffers of a table: three for each of seven columns.
    MAX_BUFFERS = 21


# Reading. Each function returns the position after what it has read, or NULL if that is invalid.
# Pure Python checks some bounds later, against the end of all records instead of the end of one. It
# rejects the same records, because it finally checks that each ends where its length says.

cdef struct Parsed:
    int64_t time_delta
    uint32_t offset_delta
    Bytes key
    Bytes value
    # -1 if null.
    Py_ssize_t key_size
    Py_ssize_t value_size
    uint32_t header_count
    Bytes stop


cdef struct Header:
    Bytes key
    Bytes value
    Py_ssize_t key_size
    Py_ssize_t value_size


cdef inline Bytes read_varint(Bytes p, Bytes stop, int bits, uint64_t *number) noexcept nogil:
    cdef uint64_t byte, value = 0
    cdef int shift = 0
    while p < stop:
        byte = p[0]
        p += 1
        # The fifth byte may carry four bits, the tenth one bit, and must be the last.
        if shift + 7 > bits and byte >> (bits - shift):
            return NULL
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            number[0] = value
            return p
        shift += 7
    return NULL


cdef inline Bytes read_uint32(Bytes p, Bytes stop, uint32_t *number) noexcept nogil:
    cdef uint64_t value = 0
    if p < stop and p[0] < 0x80:
        number[0] = p[0]
        return p + 1
    p = read_varint(p, stop, 32, &value)
    number[0] = <uint32_t>value
    return p


cdef inline Bytes read_nullable(Bytes p, Bytes stop, Bytes *start, Py_ssize_t *size) noexcept nogil:
    cdef uint32_t n = 0
    # Null is exactly this byte: pure Python rejects longer encodings of -1.
    if p < stop and p[0] == 1:
        start[0] = p
        size[0] = -1
        return p + 1
    p = read_uint32(p, stop, &n)
    if p == NULL or n & 1 or n >> 1 > stop - p:
        return NULL
    start[0] = p
    size[0] = n >> 1
    return p + (n >> 1)


cdef inline Bytes read_record(Bytes p, Bytes end, Parsed *record) noexcept nogil:
    """Read a record up to its headers; they must end at `record.stop`."""
    cdef uint32_t n = 0
    cdef uint64_t time = 0
    p = read_uint32(p, end, &n)
    if p == NULL or n & 1 or n >> 1 > end - p or n >> 1 == 0:
        return NULL
    cdef Bytes stop = p + (n >> 1)
    p = read_varint(p + 1, stop, 64, &time)  # skips the attributes
    if p == NULL:
        return NULL
    record.time_delta = <int64_t>(time >> 1) ^ -<int64_t>(time & 1)
    p = read_uint32(p, stop, &n)
    if p == NULL or n & 1:
        return NULL
    record.offset_delta = n >> 1
    p = read_nullable(p, stop, &record.key, &record.key_size)
    if p == NULL:
        return NULL
    p = read_nullable(p, stop, &record.value, &record.value_size)
    if p == NULL:
        return NULL
    p = read_uint32(p, stop, &n)
    if p == NULL or n & 1 or n >> 1 > (stop - p) // MIN_HEADER_BYTES:
        return NULL
    record.header_count = n >> 1
    record.stop = stop
    return p


cdef inline Bytes read_header(Bytes p, Bytes stop, Header *header) noexcept nogil:
    cdef uint32_t n = 0
    p = read_uint32(p, stop, &n)
    if p == NULL or n & 1 or n >> 1 > stop - p:
        return NULL
    header.key = p
    header.key_size = n >> 1
    p = read_uint32(p + (n >> 1), stop, &n)
    if p == NULL:
        return NULL
    header.value = p
    if n == 1:
        header.value_size = -1
        return p
    if n & 1 or n >> 1 > stop - p:
        return NULL
    header.value_size = n >> 1
    return p + (n >> 1)


cdef inline bint add(int64_t a, int64_t b, int64_t *total) noexcept nogil:
    """Add two numbers; return False on overflow."""
    if (b > 0 and a > INT64_MAX - b) or (b < 0 and a < INT64_MIN - b):
        return False
    total[0] = a + b
    return True


cdef bint is_utf8(Bytes p, Py_ssize_t size) noexcept nogil:
    """Whether Python would decode the bytes: no surrogates, no overlong forms."""
    cdef Bytes stop = p + size
    cdef uint8_t first, low, high
    cdef int more
    while p < stop:
        first = p[0]
        p += 1
        if first < 0x80:
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
            if first == 0xE0:
                low = 0xA0
            elif first == 0xED:
                high = 0x9F
        elif 0xF0 <= first <= 0xF4:
            more = 3
            if first == 0xF0:
                low = 0x90
            elif first == 0xF4:
                high = 0x8F
        else:
            return False
        if stop - p < more or not low <= p[0] <= high:
            return False
        p += 1
        for _ in range(more - 1):
            if not 0x80 <= p[0] <= 0xBF:
                return False
            p += 1
    return True


# Records as objects.

def decode_records(
    type record_type,
    tuple before,
    tuple after,
    payload,
    count,
    base_offset,
    base_timestamp,
    append_time,
):
    """Return a list of `record_type`, a named tuple; see `records.decode_as`."""
    cdef Py_buffer view
    cdef int64_t number = 0, offset = 0, timestamp = 0
    if not int_of(count, &number):
        return None
    if not int_of(base_offset, &offset) or not int_of(base_timestamp, &timestamp):
        return None
    if append_time is not None and type(append_time) is not int:
        return None
    if not open_buffer(payload, &view):
        return None
    try:
        if not 0 <= number <= view.len // MIN_RECORD_BYTES:
            return None
        return decode_list(
            record_type, before, after, &view, number, offset, timestamp, append_time
        )
    finally:
        PyBuffer_Release(&view)


cdef inline bint int_of(value, int64_t *number) except -1:
    # Cython would accept a float.
    if type(value) is not int:
        return False
    try:
        number[0] = value
    except OverflowError:
        return False
    return True


cdef inline bint open_buffer(payload, Py_buffer *view) except -1:
    try:
        PyObject_GetBuffer(payload, view, PyBUF_SIMPLE)
    except (BufferError, TypeError):
        return False
    return True


cdef list decode_list(
    type record_type,
    tuple before,
    tuple after,
    Py_buffer *view,
    int64_t count,
    int64_t base_offset,
    int64_t base_timestamp,
    append_time,
):
    cdef Bytes p = <Bytes>view.buf
    cdef Bytes end = p + view.len
    cdef Parsed record
    cdef int64_t offset = 0, timestamp = 0
    cdef list records = []
    cdef Py_ssize_t first = len(before), size = first + STORED_FIELDS + len(after)
    cdef AllocFunction alloc = (<TupleType *>record_type).tp_alloc
    for _ in range(count):
        p = read_record(p, end, &record)
        if p == NULL or not add(base_offset, record.offset_delta, &offset):
            return None
        if append_time is None and not add(base_timestamp, record.time_delta, &timestamp):
            return None
        headers = ()
        if record.header_count:
            headers = decode_headers(&p, &record)
            if headers is None:
                return None
        if p != record.stop:
            return None
        time = timestamp if append_time is None else append_time
        key = bytes_of(record.key, record.key_size)
        value = bytes_of(record.value, record.value_size)
        row = alloc(record_type, size)
        put_all(row, 0, before)
        put_item(row, first, offset)
        put_item(row, first + 1, time)
        put_item(row, first + 2, key)
        put_item(row, first + 3, value)
        put_item(row, first + 4, headers)
        put_all(row, first + STORED_FIELDS, after)
        records.append(untracked(row))
    return records if p == end else None


cdef inline void put_all(row, Py_ssize_t at, tuple items) noexcept:
    for item in items:
        put_item(row, at, item)
        at += 1


cdef inline void put_item(row, Py_ssize_t at, item) noexcept:
    Py_INCREF(item)
    PyTuple_SET_ITEM(row, at, item)


cdef tuple decode_headers(Bytes *position, Parsed *record):
    cdef Bytes p = position[0]
    cdef Header header
    cdef list headers = []
    for _ in range(record.header_count):
        p = read_header(p, record.stop, &header)
        if p == NULL:
            return None
        try:
            key = PyUnicode_DecodeUTF8(<char *>header.key, header.key_size, NULL)
        except UnicodeDecodeError:
            return None
        headers.append(untracked((key, bytes_of(header.value, header.value_size))))
    position[0] = p
    return untracked(tuple(headers))


cdef inline object untracked(container):
    """Untrack a tuple that cannot be part of a reference cycle."""
    # The garbage collector does this by itself only for plain tuples, not for subclasses.
    PyObject_GC_UnTrack(<void *>container)
    return container


cdef inline object bytes_of(Bytes start, Py_ssize_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<char *>start, size)


# Validation of produced records, for brokers.

cdef enum:
    # Below this, releasing the GIL costs more than it gains others.
    MIN_NOGIL_BYTES = 64 * 1024

# The numbers of validation.Part.
cdef enum:
    RECORD_COUNT = 1
    RECORD_LENGTH = 2
    TIMESTAMP_DELTA = 3
    OFFSET_DELTA = 4
    KEY = 5
    VALUE = 6
    HEADER_COUNT = 7
    HEADER = 8
    RECORD_END = 9
    PAYLOAD_END = 10


cdef struct Validation:
    Bytes start
    Bytes end
    int64_t count
    int64_t base_timestamp
    bint checks_timestamps
    int64_t earliest
    int64_t latest
    bint requires_keys
    # Results. The arrays have room for `max_listed` indexes; NULL if nothing is to be listed.
    int part
    int64_t index
    int64_t max_timestamp
    int64_t max_timestamp_delta
    int64_t invalid_count
    int64_t max_listed
    int32_t *without_key
    int32_t *out_of_range
    Py_ssize_t without_key_count
    Py_ssize_t out_of_range_count


def validate_records(payload, count, base_timestamp, timestamps, requires_keys, max_listed):
    """Return the fields of `validation.ValidatedRecords`, or the malformed part and its record."""
    cdef Py_buffer view
    cdef Validation work
    if not int_of(count, &work.count) or not int_of(base_timestamp, &work.base_timestamp):
        return None
    if not int_of(max_listed, &work.max_listed):
        return None
    work.checks_timestamps = timestamps is not None
    if work.checks_timestamps:
        earliest, latest = timestamps
        if not int_of(earliest, &work.earliest) or not int_of(latest, &work.latest):
            return None
    work.requires_keys = requires_keys
    if not open_buffer(payload, &view):
        return None
    try:
        work.start = <Bytes>view.buf
        work.end = work.start + view.len
        if not 0 <= work.count <= view.len // MIN_RECORD_BYTES:
            return RECORD_COUNT, 0
        work.without_key = work.out_of_range = NULL
        run_validation(&work, view.len)
        if work.part:
            return work.part, work.index
        if not work.invalid_count or work.max_listed <= 0:
            return result_of(&work)
        # Rare: only now is it worth the memory to list them.
        work.max_listed = min(work.max_listed, work.invalid_count)
        work.without_key = <int32_t *>malloc(8 * work.max_listed)
        if work.without_key == NULL:
            raise MemoryError
        work.out_of_range = work.without_key + work.max_listed
        try:
            run_validation(&work, view.len)
            return result_of(&work)
        finally:
            free(work.without_key)
    finally:
        PyBuffer_Release(&view)


cdef tuple result_of(Validation *work):
    cdef Py_ssize_t n
    return (
        work.max_timestamp,
        work.max_timestamp_delta,
        work.invalid_count,
        [work.without_key[n] for n in range(work.without_key_count)],
        [work.out_of_range[n] for n in range(work.out_of_range_count)],
    )


cdef void run_validation(Validation *work, Py_ssize_t size) noexcept:
    if size < MIN_NOGIL_BYTES:
        validate_all(work)
    else:
        with nogil:
            validate_all(work)


cdef void validate_all(Validation *work) noexcept nogil:
    cdef Bytes p = work.start
    cdef Bytes end = work.end
    cdef Parsed record
    cdef Header header
    cdef int64_t index, timestamp = 0
    cdef uint32_t n
    cdef bint is_representable
    work.part = 0
    work.max_timestamp = work.max_timestamp_delta = -1
    work.invalid_count = 0
    work.without_key_count = work.out_of_range_count = 0
    for index in range(work.count):
        work.index = index
        p = validate_record(p, end, <uint32_t>index, &record, &work.part)
        if p == NULL:
            return
        for n in range(record.header_count):
            p = read_header(p, record.stop, &header)
            if p == NULL:
                work.part = HEADER
                return
        if p != record.stop:
            work.part = RECORD_END
            return
        is_representable = add(work.base_timestamp, record.time_delta, &timestamp)
        if work.checks_timestamps and is_representable and timestamp > work.max_timestamp:
            work.max_timestamp = timestamp
            work.max_timestamp_delta = index
        if work.requires_keys and record.key_size < 0:
            work.invalid_count += 1
            if work.without_key != NULL and work.invalid_count <= work.max_listed:
                work.without_key[work.without_key_count] = <int32_t>index
                work.without_key_count += 1
        elif work.checks_timestamps and not (
            is_representable and (timestamp == -1 or work.earliest <= timestamp <= work.latest)
        ):
            work.invalid_count += 1
            if work.out_of_range != NULL and work.invalid_count <= work.max_listed:
                work.out_of_range[work.out_of_range_count] = <int32_t>index
                work.out_of_range_count += 1
    if p != end:
        work.index = work.count
        work.part = PAYLOAD_END


cdef inline Bytes validate_record(
    Bytes p, Bytes end, uint32_t index, Parsed *record, int *part
) noexcept nogil:
    """Read a record up to its headers as `read_record` does; set `part` if it is malformed."""
    cdef uint32_t n = 0
    cdef uint64_t time = 0
    part[0] = RECORD_LENGTH
    p = read_uint32(p, end, &n)
    if p == NULL or n & 1 or n >> 1 > end - p or n >> 1 == 0:
        return NULL
    cdef Bytes stop = p + (n >> 1)
    part[0] = TIMESTAMP_DELTA
    p = read_varint(p + 1, stop, 64, &time)  # skips the attributes
    if p == NULL:
        return NULL
    record.time_delta = <int64_t>(time >> 1) ^ -<int64_t>(time & 1)
    part[0] = OFFSET_DELTA
    p = read_uint32(p, stop, &n)
    if p == NULL or n != index << 1:
        return NULL
    part[0] = KEY
    p = read_nullable(p, stop, &record.key, &record.key_size)
    if p == NULL:
        return NULL
    part[0] = VALUE
    p = read_nullable(p, stop, &record.value, &record.value_size)
    if p == NULL:
        return NULL
    part[0] = HEADER_COUNT
    p = read_uint32(p, stop, &n)
    if p == NULL or n & 1 or n >> 1 > (stop - p) // MIN_HEADER_BYTES:
        return NULL
    record.header_count = n >> 1
    record.stop = stop
    part[0] = 0
    return p


def find_timestamp(payload, count, base_timestamp, timestamp, first_delta):
    """Return offset delta and timestamp of the first record at or after a timestamp; see the stub."""
    cdef Py_buffer view
    cdef int64_t number = 0, base = 0, target = 0, first = 0, delta = -1, found = 0
    cdef bint is_valid
    if not int_of(count, &number) or not int_of(base_timestamp, &base):
        return None
    if not int_of(timestamp, &target) or not int_of(first_delta, &first):
        return None
    if not open_buffer(payload, &view):
        return None
    try:
        with nogil:
            is_valid = search_timestamp(
                <Bytes>view.buf, <Bytes>view.buf + view.len, number, base, target, first,
                &delta, &found,
            )
    finally:
        PyBuffer_Release(&view)
    if not is_valid:
        return (0,)
    return () if delta < 0 else (delta, found)


cdef bint search_timestamp(
    Bytes p,
    Bytes end,
    int64_t count,
    int64_t base,
    int64_t target,
    int64_t first,
    int64_t *delta,
    int64_t *found,
) noexcept nogil:
    """Set `delta` and `found` if there is such a record; return False if one is malformed."""
    cdef uint32_t n = 0
    cdef uint64_t time = 0
    cdef int64_t timestamp = 0
    cdef Bytes stop
    for _ in range(count):
        p = read_uint32(p, end, &n)
        if p == NULL or n & 1 or n < 2 or n >> 1 > end - p:
            return False
        stop = p + (n >> 1)
        p = read_varint(p + 1, stop, 64, &time)  # skips the attributes
        if p == NULL:
            return False
        p = read_uint32(p, stop, &n)
        if p == NULL or n & 1:
            return False
        if add(base, <int64_t>(time >> 1) ^ -<int64_t>(time & 1), &timestamp):
            if timestamp >= target and n >> 1 >= first:
                delta[0] = n >> 1
                found[0] = timestamp
                return True
        p = stop
    return True


# Objects to records. No Python code runs in here, so values do not change after the size check.

cdef struct Field:
    const char *start
    Py_ssize_t size


cdef struct Output:
    uint8_t *start
    uint8_t *p
    uint8_t *end


def encode_records(type record_type, records, base_offset, base_timestamp):
    """Encode a list or tuple of `record_type`, or of plain tuples."""
    cdef Output output
    cdef int64_t first_offset = 0, first_timestamp = 0
    if type(records) is not list and type(records) is not tuple:
        return None
    if not int_of(base_offset, &first_offset) or not int_of(base_timestamp, &first_timestamp):
        return None
    output.start = output.p = output.end = NULL
    reserve(&output, 64 * len(records) + 64)
    try:
        for record in records:
            if type(record) is not record_type and type(record) is not tuple:
                return None
            if not encode_record(<tuple>record, first_offset, first_timestamp, &output):
                return None
        return PyBytes_FromStringAndSize(<char *>output.start, output.p - output.start)
    finally:
        free(output.start)


cdef bint encode_record(
    tuple record, int64_t base_offset, int64_t base_timestamp, Output *output
) except -1:
    """Write a record; return False if it is not a common case."""
    cdef int64_t offset = 0, timestamp = 0
    cdef Field key, value
    cdef Py_ssize_t size, tail
    if PyTuple_GET_SIZE(record) != 5:
        return False
    if not delta_of(<object>PyTuple_GET_ITEM(record, 0), base_offset, &offset):
        return False
    if not delta_of(<object>PyTuple_GET_ITEM(record, 1), base_timestamp, &timestamp):
        return False
    if not field_of(<object>PyTuple_GET_ITEM(record, 2), &key):
        return False
    if not field_of(<object>PyTuple_GET_ITEM(record, 3), &value):
        return False
    headers = <object>PyTuple_GET_ITEM(record, 4)
    tail = headers_size(headers)
    if tail < 0:
        return False
    size = 1 + varint_size(timestamp) + varint_size(offset)
    size += field_size(&key) + field_size(&value) + tail
    reserve(output, MAX_VARINT_BYTES + size)
    cdef uint8_t *p = write_varint(output.p, size)
    p[0] = 0
    p = write_varint(p + 1, timestamp)
    p = write_varint(p, offset)
    p = write_field(p, &key)
    p = write_field(p, &value)
    output.p = write_headers(p, headers)
    return True


cdef Py_ssize_t headers_size(headers) except -2:
    """Return the encoded size of headers, or -1 if they are not a common case."""
    cdef Field key, value
    if type(headers) is not tuple and type(headers) is not list:
        return -1
    cdef Py_ssize_t size = varint_size(len(headers))
    for header in headers:
        if type(header) is not tuple or PyTuple_GET_SIZE(header) != 2:
            return -1
        if not text_of(<object>PyTuple_GET_ITEM(header, 0), &key):
            return -1
        if not field_of(<object>PyTuple_GET_ITEM(header, 1), &value):
            return -1
        size += field_size(&key) + field_size(&value)
    return size


cdef uint8_t *write_headers(uint8_t *p, headers) except NULL:
    cdef Field key, value
    p = write_varint(p, len(headers))
    for header in headers:
        text_of(<object>PyTuple_GET_ITEM(header, 0), &key)
        field_of(<object>PyTuple_GET_ITEM(header, 1), &value)
        p = write_field(p, &key)
        p = write_field(p, &value)
    return p


cdef inline bint delta_of(value, int64_t base, int64_t *delta) except -1:
    return int_of(value, delta) and base != INT64_MIN and add(delta[0], -base, delta)


cdef inline bint field_of(value, Field *field) noexcept:
    if value is None:
        field.start = NULL
        field.size = -1
    elif type(value) is bytes:
        field.start = PyBytes_AS_STRING(value)
        field.size = PyBytes_GET_SIZE(value)
    elif type(value) is bytearray:
        field.start = PyByteArray_AS_STRING(value)
        field.size = PyByteArray_GET_SIZE(value)
    else:
        return False
    return True


cdef inline bint text_of(text, Field *field) except -1:
    if type(text) is not str:
        return False
    try:
        field.start = PyUnicode_AsUTF8AndSize(text, &field.size)
    except UnicodeEncodeError:
        return False
    return True


cdef inline Py_ssize_t varint_size(int64_t number) noexcept nogil:
    cdef uint64_t rest = zigzag(number)
    cdef Py_ssize_t size = 1
    while rest > 0x7F:
        rest >>= 7
        size += 1
    return size


cdef inline uint8_t *write_varint(uint8_t *p, int64_t number) noexcept nogil:
    cdef uint64_t rest = zigzag(number)
    while rest > 0x7F:
        p[0] = <uint8_t>(rest & 0x7F | 0x80)
        p += 1
        rest >>= 7
    p[0] = <uint8_t>rest
    return p + 1


cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return (<uint64_t>number << 1) ^ <uint64_t>-<int64_t>(number < 0)


cdef inline Py_ssize_t field_size(Field *field) noexcept nogil:
    return varint_size(field.size) + (field.size if field.size > 0 else 0)


cdef inline uint8_t *write_field(uint8_t *p, Field *field) noexcept nogil:
    p = write_varint(p, field.size)
    if field.size > 0:
        memcpy(p, field.start, field.size)
        p += field.size
    return p


cdef inline int reserve(Output *output, Py_ssize_t size) except -1:
    """Make space for `size` more bytes."""
    if output.end - output.p >= size:
        return 0
    cdef Py_ssize_t used = output.p - output.start
    cdef Py_ssize_t capacity = max(used + size, 2 * used)
    cdef uint8_t *start = <uint8_t *>realloc(output.start, capacity)
    if start == NULL:
        raise MemoryError
    output.start = start
    output.p = start + used
    output.end = start + capacity
    return 0


# Records to columns in the layout of Arrow, without the GIL.

cdef class OutputBuffer:
    """Memory for a column from the caller's allocator: as much as it could need, then truncated.

    Pages that are never touched cost nothing. The allocator of the caller (Arrow's) reuses freed
    memory, where malloc would map new pages for every large block.
    """

    cdef object buffer
    cdef Py_buffer view
    cdef bint is_open

    def __cinit__(self, allocate, Py_ssize_t size):
        self.buffer = allocate(size)
        PyObject_GetBuffer(self.buffer, &self.view, PyBUF_WRITABLE)
        self.is_open = True
        if self.view.len < size:
            raise MemoryError(f"allocated {self.view.len} bytes instead of {size}")

    def __dealloc__(self):
        if self.is_open:
            PyBuffer_Release(&self.view)

    cdef object truncate(self, Py_ssize_t size):
        """Return the buffer, truncated to `size`."""
        PyBuffer_Release(&self.view)
        self.is_open = False
        self.buffer.resize(size, True)
        return self.buffer


cdef struct Binary:
    uint8_t *validity
    int32_t *ends
    uint8_t *data
    int32_t size
    int32_t nulls


cdef class BinaryOutput:
    """Buffers for a binary column of at most `count` values and `size` bytes."""

    cdef OutputBuffer validity
    cdef OutputBuffer ends
    cdef OutputBuffer data
    cdef Binary raw

    def __cinit__(self, allocate, Py_ssize_t count, Py_ssize_t size):
        self.validity = OutputBuffer(allocate, (count + 7) // 8)
        self.ends = OutputBuffer(allocate, 4 * (count + 1))
        self.data = OutputBuffer(allocate, size)
        self.raw.validity = <uint8_t *>self.validity.view.buf
        self.raw.ends = <int32_t *>self.ends.view.buf
        self.raw.data = <uint8_t *>self.data.view.buf
        self.raw.ends[0] = 0
        self.raw.size = self.raw.nulls = 0

    cdef tuple truncate(self, Py_ssize_t count):
        """Return null count, validity, offsets and data of `count` values."""
        validity = self.validity.truncate((count + 7) // 8)
        ends = self.ends.truncate(4 * (count + 1))
        data = self.data.truncate(self.raw.size)
        return self.raw.nulls, validity if self.raw.nulls else None, ends, data


cdef struct Source:
    Py_buffer view
    int64_t count
    int64_t base_offset
    int64_t base_timestamp
    bint has_append_time


cdef struct Columns:
    int64_t first_offset
    int64_t last_offset
    int64_t time_scale
    bint with_headers
    Py_ssize_t count
    int64_t *offsets
    int64_t *timestamps
    int32_t *timestamp_types
    Binary keys
    Binary values
    int32_t header_count
    int32_t *header_ends
    Binary header_keys
    Binary header_values


def decode_columns(
    allocate,
    list batches,
    int64_t first_offset,
    int64_t last_offset,
    int64_t time_scale,
    bint with_headers,
):
    """Decode the records from `first_offset` to `last_offset` to columns; see the stub."""
    cdef Py_ssize_t opened = 0
    cdef Source *sources = <Source *>malloc(max(len(batches), 1) * sizeof(Source))
    if sources == NULL:
        raise MemoryError
    try:
        for batch in batches:
            if not open_source(batch, &sources[opened]):
                return None
            opened += 1
        return decode_sources(
            allocate, sources, opened, first_offset, last_offset, time_scale, with_headers
        )
    finally:
        for n in range(opened):
            PyBuffer_Release(&sources[n].view)
        free(sources)


cdef bint open_source(batch, Source *source) except -1:
    payload, count, base_offset, base_timestamp, append_time = batch
    cdef int64_t number = 0
    source.has_append_time = append_time is not None
    timestamp = base_timestamp if append_time is None else append_time
    if not int_of(count, &number) or not int_of(base_offset, &source.base_offset):
        return False
    if not int_of(timestamp, &source.base_timestamp) or not open_buffer(payload, &source.view):
        return False
    source.count = number
    if 0 <= number <= source.view.len // MIN_RECORD_BYTES:
        return True
    PyBuffer_Release(&source.view)
    return False


cdef tuple decode_sources(
    allocate,
    Source *sources,
    Py_ssize_t source_count,
    int64_t first_offset,
    int64_t last_offset,
    int64_t time_scale,
    bint with_headers,
):
    cdef Py_ssize_t count = 0, size = 0
    for n in range(source_count):
        count += sources[n].count
        size += sources[n].view.len
    # Offsets into a column have 32 bits; callers pass less than that at a time.
    if size > INT32_MAX or time_scale < 1:
        return None

    cdef Py_ssize_t header_size = size if with_headers else 0
    cdef Py_ssize_t header_count = header_size // MIN_HEADER_BYTES
    cdef OutputBuffer offsets = OutputBuffer(allocate, 8 * count)
    cdef OutputBuffer timestamps = OutputBuffer(allocate, 8 * count)
    cdef OutputBuffer timestamp_types = OutputBuffer(allocate, 4 * count)
    cdef OutputBuffer header_ends = OutputBuffer(allocate, 4 * (count + 1))
    cdef BinaryOutput keys = BinaryOutput(allocate, count, size)
    cdef BinaryOutput values = BinaryOutput(allocate, count, size)
    cdef BinaryOutput header_keys = BinaryOutput(allocate, header_count, header_size)
    cdef BinaryOutput header_values = BinaryOutput(allocate, header_count, header_size)

    cdef Columns columns
    columns.first_offset = first_offset
    columns.last_offset = last_offset
    columns.time_scale = time_scale
    columns.with_headers = with_headers
    columns.count = 0
    columns.offsets = <int64_t *>offsets.view.buf
    columns.timestamps = <int64_t *>timestamps.view.buf
    columns.timestamp_types = <int32_t *>timestamp_types.view.buf
    columns.keys = keys.raw
    columns.values = values.raw
    columns.header_count = 0
    columns.header_ends = <int32_t *>header_ends.view.buf
    columns.header_ends[0] = 0
    columns.header_keys = header_keys.raw
    columns.header_values = header_values.raw

    cdef bint is_valid
    with nogil:
        is_valid = fill_all(&columns, sources, source_count)
    if not is_valid:
        return None

    keys.raw, values.raw = columns.keys, columns.values
    header_keys.raw, header_values.raw = columns.header_keys, columns.header_values
    headers = None
    if with_headers:
        headers = (
            columns.header_count,
            header_ends.truncate(4 * (columns.count + 1)),
            header_keys.truncate(columns.header_count),
            header_values.truncate(columns.header_count),
        )
    return (
        columns.count,
        keys.truncate(columns.count),
        values.truncate(columns.count),
        offsets.truncate(8 * columns.count),
        timestamps.truncate(8 * columns.count),
        timestamp_types.truncate(4 * columns.count),
        headers,
    )


cdef bint fill_all(Columns *columns, Source *sources, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t n
    for n in range(count):
        if not fill(columns, &sources[n]):
            return False
    return True


cdef bint fill(Columns *columns, Source *source) noexcept nogil:
    """Append the records of one batch to the columns; return False if one is invalid."""
    cdef Bytes p = <Bytes>source.view.buf
    cdef Bytes end = p + source.view.len
    cdef int64_t earliest = INT64_MIN // columns.time_scale
    cdef int64_t latest = INT64_MAX // columns.time_scale
    cdef int64_t offset = 0, timestamp = source.base_timestamp
    cdef Parsed record
    cdef Py_ssize_t n, row
    cdef bint is_selected
    for n in range(source.count):
        p = read_record(p, end, &record)
        if p == NULL or not add(source.base_offset, record.offset_delta, &offset):
            return False
        is_selected = columns.first_offset <= offset <= columns.last_offset
        if record.header_count:
            p = fill_headers(columns, p, &record, is_selected and columns.with_headers)
        if p != record.stop:
            return False
        if not is_selected:
            continue
        if not source.has_append_time:
            if not add(source.base_timestamp, record.time_delta, &timestamp):
                return False
        if not earliest <= timestamp <= latest:
            return False
        row = columns.count
        columns.offsets[row] = offset
        columns.timestamps[row] = timestamp * columns.time_scale
        columns.timestamp_types[row] = source.has_append_time
        put(&columns.keys, row, record.key, record.key_size)
        put(&columns.values, row, record.value, record.value_size)
        if columns.with_headers:
            columns.header_ends[row + 1] = columns.header_count
        columns.count += 1
    return p == end


cdef Bytes fill_headers(Columns *columns, Bytes p, Parsed *record, bint is_selected) noexcept nogil:
    cdef Header header
    cdef uint32_t n
    for n in range(record.header_count):
        p = read_header(p, record.stop, &header)
        if p == NULL or not is_utf8(header.key, header.key_size):
            return NULL
        if is_selected:
            put(&columns.header_keys, columns.header_count, header.key, header.key_size)
            put(&columns.header_values, columns.header_count, header.value, header.value_size)
            columns.header_count += 1
    return p


cdef inline void put(
    Binary *column, Py_ssize_t row, Bytes start, Py_ssize_t size
) noexcept nogil:
    if row & 7 == 0:
        column.validity[row >> 3] = 0
    if size < 0:
        column.nulls += 1
    else:
        memcpy(column.data + column.size, start, size)
        column.size += <int32_t>size
        column.validity[row >> 3] |= <uint8_t>(1 << (row & 7))
    column.ends[row + 1] = column.size


# Columns in the layout of Arrow to records, grouped by partition, without the GIL. The caller has
# validated the columns.

cdef class Buffers:
    """Buffers exported for as long as this object lives."""

    cdef Py_buffer views[MAX_BUFFERS]
    cdef int opened

    def __dealloc__(self):
        for n in range(self.opened):
            PyBuffer_Release(&self.views[n])

    cdef const void *open(self, buffer) except? NULL:
        if buffer is None:
            return NULL
        assert self.opened < MAX_BUFFERS
        PyObject_GetBuffer(buffer, &self.views[self.opened], PyBUF_SIMPLE)
        self.opened += 1
        return self.views[self.opened - 1].buf


cdef struct InputColumn:
    # `data` is NULL for a missing column, `validity` for a column without nulls.
    const uint8_t *validity
    const void *data
    const char *content
    Py_ssize_t first


cdef struct Table:
    InputColumn keys
    InputColumn values
    InputColumn partitions
    InputColumn timestamps
    InputColumn headers
    InputColumn header_keys
    InputColumn header_values
    Py_ssize_t count
    int32_t partition_count
    int64_t now
    # The size limit of a pack with several records, and of a single record.
    Py_ssize_t max_pack_bytes
    Py_ssize_t max_record_bytes


cdef struct TableRow:
    # A row as a record, without its offset delta.
    int64_t timestamp
    Field key
    Field value
    Py_ssize_t first_header
    Py_ssize_t header_count
    Py_ssize_t header_size


def pack_columns(
    keys,
    values,
    partitions,
    timestamps,
    headers,
    Py_ssize_t count,
    int32_t partition_count,
    int64_t now,
    Py_ssize_t max_pack_bytes,
    Py_ssize_t max_record_bytes,
):
    """Encode rows, in packs of one partition each; see the stub."""
    cdef Buffers buffers = Buffers()
    cdef Table table
    cdef Py_ssize_t largest_record = 0
    cdef Py_ssize_t buckets = partition_count + 1
    if count > INT32_MAX or partition_count < 1 or headers is not None and len(headers) != 3:
        return None
    open_column(buffers, keys, &table.keys)
    open_column(buffers, values, &table.values)
    open_column(buffers, partitions, &table.partitions)
    open_column(buffers, timestamps, &table.timestamps)
    ends, header_keys, header_values = headers or (None, None, None)
    open_column(buffers, ends, &table.headers)
    open_column(buffers, header_keys, &table.header_keys)
    open_column(buffers, header_values, &table.header_values)
    table.count = count
    table.partition_count = partition_count
    table.now = now
    table.max_pack_bytes = max_pack_bytes
    table.max_record_bytes = max_record_bytes
    cdef int32_t *row_partitions = <int32_t *>malloc(4 * (2 * count + buckets + 1))
    if row_partitions == NULL:
        raise MemoryError
    cdef int32_t *order = row_partitions + count
    # Where the rows of each partition end in `order`.
    cdef int32_t *ends_of = order + count
    cdef bint is_common
    cdef uint8_t *output = NULL
    try:
        with nogil:
            is_common = partition_rows(&table, row_partitions, ends_of, &largest_record)
            if is_common:
                sort_by_partition(count, buckets, row_partitions, order, ends_of)
        if not is_common:
            return None
        output = <uint8_t *>malloc(max(max_pack_bytes, largest_record))
        if output == NULL:
            raise MemoryError
        return pack_all(&table, order, ends_of, output)
    finally:
        free(row_partitions)
        free(output)


cdef int open_column(Buffers buffers, source, InputColumn *column) except -1:
    column.validity = NULL
    column.data = NULL
    column.content = NULL
    column.first = 0
    if source is not None:
        validity, data, content, column.first = source
        column.validity = <const uint8_t *>buffers.open(validity)
        column.data = buffers.open(data)
        column.content = <const char *>buffers.open(content)
    return 0


cdef bint partition_rows(
    Table *table, int32_t *row_partitions, int32_t *counts, Py_ssize_t *largest_record
) noexcept nogil:
    """Find the partition of each row, and count the rows of each partition.

    A row without partition and key may go to any, and is counted after the last partition. Returns
    False if a row is not a common case.
    """
    cdef TableRow fields
    cdef Py_ssize_t row, size
    cdef int32_t partition
    for row in range(table.partition_count + 2):
        counts[row] = 0
    for row in range(table.count):
        if not read_row(table, row, &fields):
            return False
        if has(&table.partitions, row):
            partition = (<const int32_t *>table.partitions.data)[table.partitions.first + row]
            if not 0 <= partition < table.partition_count:
                return False
        elif fields.key.size < 0:
            partition = table.partition_count
        else:
            partition = hashed(<Bytes>fields.key.start, fields.key.size) & INT32_MAX
            partition %= table.partition_count
        size = field_size(&fields.key) + field_size(&fields.value) + fields.header_size
        size += 1 + 3 * MAX_VARINT_BYTES
        if size > table.max_record_bytes:
            return False
        largest_record[0] = max(largest_record[0], size)
        row_partitions[row] = partition
        counts[partition + 1] += 1
    return True


cdef void sort_by_partition(
    Py_ssize_t count, Py_ssize_t buckets, int32_t *row_partitions, int32_t *order, int32_t *ends
) noexcept nogil:
    """Sort rows by partition, keeping their order within a partition (a counting sort)."""
    cdef Py_ssize_t n
    cdef int32_t row
    for n in range(buckets):
        ends[n + 1] += ends[n]
    # Each entry starts where the rows of its partition begin, and moves to where they end.
    for row in range(<int32_t>count):
        order[ends[row_partitions[row]]] = row
        ends[row_partitions[row]] += 1


cdef list pack_all(Table *table, int32_t *order, int32_t *ends, uint8_t *output):
    cdef list packs = []
    cdef Py_ssize_t n = 0, first
    cdef int32_t bucket
    cdef uint8_t *end = NULL
    cdef int64_t base = 0, latest = 0
    for bucket in range(table.partition_count + 1):
        while n < ends[bucket]:
            first = n
            with nogil:
                n = pack_some(table, order, first, ends[bucket], output, &end, &base, &latest)
            payload = PyBytes_FromStringAndSize(<char *>output, end - output)
            partition = None if bucket == table.partition_count else bucket
            packs.append((partition, payload, n - first, base, latest))
    return packs


cdef Py_ssize_t pack_some(
    Table *table,
    int32_t *order,
    Py_ssize_t n,
    Py_ssize_t stop,
    uint8_t *p,
    uint8_t **end,
    int64_t *base,
    int64_t *latest,
) noexcept nogil:
    """Write rows until the pack is full; return the index of the next row."""
    cdef uint8_t *limit = p + table.max_pack_bytes
    cdef Py_ssize_t first = n, size, at
    cdef TableRow fields
    cdef Field field
    while n < stop:
        read_row(table, order[n], &fields)
        if n == first:
            base[0] = latest[0] = fields.timestamp
        size = 1 + varint_size(fields.timestamp - base[0]) + varint_size(n - first)
        size += field_size(&fields.key) + field_size(&fields.value) + fields.header_size
        if n > first and p + varint_size(size) + size > limit:
            break
        p = write_varint(p, size)
        p[0] = 0
        p = write_varint(p + 1, fields.timestamp - base[0])
        p = write_varint(p, n - first)
        p = write_field(p, &fields.key)
        p = write_field(p, &fields.value)
        p = write_varint(p, fields.header_count)
        for at in range(fields.first_header, fields.first_header + fields.header_count):
            binary(&table.header_keys, at, &field)
            p = write_field(p, &field)
            binary(&table.header_values, at, &field)
            p = write_field(p, &field)
        latest[0] = max(latest[0], fields.timestamp)
        n += 1
    end[0] = p
    return n


cdef bint read_row(Table *table, Py_ssize_t row, TableRow *fields) noexcept nogil:
    """Read a row; return False if it is not a common case."""
    cdef const int32_t *ends = <const int32_t *>table.headers.data
    cdef Field field
    cdef Py_ssize_t at
    binary(&table.keys, row, &fields.key)
    binary(&table.values, row, &fields.value)
    fields.timestamp = table.now
    if has(&table.timestamps, row):
        fields.timestamp = (<const int64_t *>table.timestamps.data)[table.timestamps.first + row]
    fields.first_header = fields.header_count = 0
    if has(&table.headers, row):
        fields.first_header = ends[table.headers.first + row]
        fields.header_count = ends[table.headers.first + row + 1] - fields.first_header
    fields.header_size = varint_size(fields.header_count)
    for at in range(fields.first_header, fields.first_header + fields.header_count):
        binary(&table.header_keys, at, &field)
        if field.size < 0:
            return False
        fields.header_size += field_size(&field)
        binary(&table.header_values, at, &field)
        fields.header_size += field_size(&field)
    return fields.timestamp >= 0


cdef inline bint has(InputColumn *column, Py_ssize_t row) noexcept nogil:
    row += column.first
    return column.data != NULL and (
        column.validity == NULL or column.validity[row >> 3] >> (row & 7) & 1
    )


cdef inline void binary(InputColumn *column, Py_ssize_t row, Field *field) noexcept nogil:
    cdef const int32_t *ends = <const int32_t *>column.data
    field.start = NULL
    field.size = -1
    if has(column, row):
        row += column.first
        field.start = column.content + ends[row]
        field.size = ends[row + 1] - ends[row]


# Hashing.

def murmur2(bytes data not None):
    """Return the murmur2 hash that Kafka's clients use, as an unsigned number."""
    return hashed(<Bytes>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef uint32_t hashed(Bytes p, Py_ssize_t size) noexcept nogil:
    cdef uint32_t h = <uint32_t>0x9747b28c ^ <uint32_t>size
    cdef uint32_t k
    while size >= 4:
        k = p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24
        k *= 0x5bd1e995
        h = h * 0x5bd1e995 ^ (k ^ k >> 24) * 0x5bd1e995
        p += 4
        size -= 4
    if size:
        k = p[0]
        if size > 1:
            k |= <uint32_t>p[1] << 8
        if size > 2:
            k |= <uint32_t>p[2] << 16
        h = (h ^ k) * 0x5bd1e995
    h = (h ^ h >> 13) * 0x5bd1e995
    return h ^ h >> 15


# Messages of the protocol, field by field as a `Layout` lists them; see compiler/layout.py.

cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        Py_ssize_t offset

cdef extern from "Python.h":
    ctypedef struct SlotDescriptor "PyMemberDescrObject":
        PyMemberDef *d_member

cdef enum:
    # The numbers of compiler/layout.py.
    BOOL = 1
    INT8 = 2
    INT16 = 3
    UINT16 = 4
    INT32 = 5
    INT64 = 6
    FLOAT64 = 7
    UUID = 8
    TEXT = 9
    BLOB = 10
    ARRAY = 11
    STRUCT = 12
    # Nothing else runs meanwhile, so messages with more elements are left to pure Python. It also
    # has the rules of how many there may be.
    MAX_ELEMENTS = 4096
    UUID_BYTES = 16


cdef struct Slot:
    # Where an instance has the reference to the value.
    Py_ssize_t offset
    int kind
    bint is_nullable
    bint is_compact
    # Of arrays: their elements, which have no offset.
    Slot *element
    # Of structs; `Layout.references` keeps it.
    void *layout


cdef struct OtherSlot:
    Py_ssize_t offset
    # Whether only the default can be encoded.
    bint is_checked


cdef struct Input:
    Bytes start
    Bytes p
    Bytes end
    Py_ssize_t room
    bint failed


cdef class Layout:
    """A message class in one version: where its fields are, and how they are encoded.

    `fields` has, for each field in the order of the encoding, its name and its type: a tuple of the
    kind, whether it is nullable, whether its length is compact, and the type of the elements of an
    array or the layout of a struct. `others` has the names and defaults of all other fields, and
    `unchecked` the names of those whose values are dropped when encoded, whatever they are.
    """

    cdef object message
    cdef bint is_flexible
    cdef Py_ssize_t field_count
    cdef Slot *fields
    cdef list references
    cdef Py_ssize_t other_count
    cdef OtherSlot *others
    cdef list defaults

    def __cinit__(self, message, fields, others, unchecked, is_flexible):
        self.message = message
        self.is_flexible = is_flexible
        self.references = []
        self.defaults = []
        self.fields = <Slot *>calloc(len(fields) + 1, sizeof(Slot))
        self.others = <OtherSlot *>calloc(len(others) + 1, sizeof(OtherSlot))
        if self.fields == NULL or self.others == NULL:
            raise MemoryError
        for name, default in others:
            self.others[self.other_count].offset = slot_offset(message, name)
            self.others[self.other_count].is_checked = name not in unchecked
            self.defaults.append(default)
            self.other_count += 1
        for name, field_type in fields:
            self.fields[self.field_count].offset = slot_offset(message, name)
            self.set_type(&self.fields[self.field_count], field_type)
            self.field_count += 1

    cdef int set_type(self, Slot *slot, tuple field_type) except -1:
        cdef Layout layout
        kind, slot.is_nullable, slot.is_compact, inner = field_type
        slot.kind = kind
        if kind == STRUCT:
            layout = inner
            self.references.append(layout)
            slot.layout = <void *>layout
        elif kind == ARRAY:
            slot.element = <Slot *>calloc(1, sizeof(Slot))
            if slot.element == NULL:
                raise MemoryError
            self.set_type(slot.element, inner)
        return 0

    def __dealloc__(self):
        cdef Py_ssize_t index
        cdef Slot *element
        cdef Slot *inner
        if self.fields != NULL:
            for index in range(self.field_count):
                element = self.fields[index].element
                while element != NULL:
                    inner = element.element
                    free(element)
                    element = inner
            free(self.fields)
        free(self.others)


cdef Py_ssize_t slot_offset(message, name) except -1:
    """Return where instances have the reference of a slot."""
    for base in message.__mro__:
        if name in base.__dict__:
            descriptor = base.__dict__[name]
            if type(descriptor) is not SLOT_TYPE:
                raise TypeError(f"{message.__name__}.{name} is not a slot")
            return (<SlotDescriptor *><void *>descriptor).d_member.offset
    raise AttributeError(f"{message.__name__} has no slot {name}")


class _WithSlot:
    __slots__ = ("slot",)


SLOT_TYPE = type(_WithSlot.slot)


cdef inline void put_slot(message, Py_ssize_t offset, value) noexcept:
    """Set a slot of a new message, which has no value yet."""
    Py_INCREF(value)
    (<PyObject **>(<char *><void *>message + offset))[0] = <PyObject *>value


cdef inline PyObject *slot_of(message, Py_ssize_t offset) noexcept:
    return (<PyObject **>(<char *><void *>message + offset))[0]


def decode_message(Layout layout, buffer, Py_ssize_t position):
    """Decode the message at a position of a memoryview; return it and the position after it."""
    cdef Py_buffer view
    cdef Input data
    if not open_buffer(buffer, &view):
        return None
    try:
        if not 0 <= position <= view.len:
            return None
        data.start = <Bytes>view.buf
        data.p = data.start + position
        data.end = data.start + view.len
        data.room = MAX_ELEMENTS
        data.failed = False
        message = decode_struct(&data, layout, buffer)
        return None if data.failed else (message, data.p - data.start)
    finally:
        PyBuffer_Release(&view)


cdef object decode_struct(Input *data, Layout layout, buffer):
    """Decode one message; sets `failed` if that is left to pure Python, as all of these do."""
    cdef Py_ssize_t index
    cdef object message = (<TupleType *>layout.message).tp_alloc(<type>layout.message, 0)
    for index in range(layout.other_count):
        put_slot(message, layout.others[index].offset, layout.defaults[index])
    for index in range(layout.field_count):
        value = decode_value(data, &layout.fields[index], buffer)
        if data.failed:
            return None
        put_slot(message, layout.fields[index].offset, value)
    if layout.is_flexible:
        # Tagged fields are rare.
        if data.p == data.end or data.p[0] != 0:
            data.failed = True
            return None
        data.p += 1
    return message


cdef object decode_value(Input *data, Slot *slot, buffer):
    cdef int64_t number
    cdef Py_ssize_t size
    cdef Bytes p
    if slot.kind <= INT64:
        number = read_fixed(data, slot.kind)
        return number if slot.kind != BOOL else number != 0
    if slot.kind == FLOAT64:
        return read_float(data)
    if slot.kind == UUID:
        p = data.p
        if data.end - p < UUID_BYTES:
            data.failed = True
            return None
        data.p += UUID_BYTES
        return uuid_of(p)
    if slot.kind == STRUCT:
        if slot.is_nullable and read_fixed(data, INT8) < 0:
            return None
        return None if data.failed else decode_struct(data, <Layout>slot.layout, buffer)
    size = read_length(data, slot)
    if size < 0:
        return None
    if slot.kind == ARRAY:
        return decode_array(data, slot.element, size, buffer)
    if size > data.end - data.p:
        data.failed = True
        return None
    p = data.p
    data.p += size
    if slot.kind == BLOB:
        return buffer[p - data.start : data.p - data.start]
    try:
        return PyUnicode_DecodeUTF8(<char *>p, size, NULL)
    except UnicodeDecodeError:
        data.failed = True
        return None


cdef object decode_array(Input *data, Slot *element, Py_ssize_t count, buffer):
    cdef Py_ssize_t index
    cdef list values = []
    data.room -= count
    if data.room < 0:
        data.failed = True
        return None
    for index in range(count):
        value = decode_value(data, element, buffer)
        if data.failed:
            return None
        values.append(value)
    return tuple(values) if element.kind <= FLOAT64 else values


cdef inline Py_ssize_t read_length(Input *data, Slot *slot) noexcept:
    """Read a length or count; -1 is null. Sets `failed` if it is another negative number."""
    cdef uint64_t number = 0
    cdef int64_t size
    cdef Bytes p
    if not slot.is_compact:
        size = read_fixed(data, INT16 if slot.kind == TEXT else INT32)
    else:
        p = read_varint(data.p, data.end, 32, &number)
        if p == NULL:
            data.failed = True
            return -1
        data.p = p
        size = <int64_t>number - 1
    if size < 0 and (size != -1 or not slot.is_nullable):
        data.failed = True
    return size


cdef inline int64_t read_fixed(Input *data, int kind) noexcept:
    cdef Bytes p = data.p
    cdef Py_ssize_t size = fixed_size(kind), index
    cdef uint64_t number = 0
    if data.end - p < size:
        data.failed = True
        return 0
    for index in range(size):
        number = number << 8 | p[index]
    data.p += size
    if kind == INT64:
        return <int64_t>number
    if kind == INT32:
        return <int32_t>number
    if kind == INT16:
        return <int16_t>number
    return <int8_t>number if kind == INT8 else <int64_t>number


cdef inline Py_ssize_t fixed_size(int kind) noexcept nogil:
    if kind == INT64 or kind == FLOAT64:
        return 8
    if kind == INT32:
        return 4
    return 2 if kind == INT16 or kind == UINT16 else 1


cdef object read_float(Input *data):
    cdef int64_t bits = read_fixed(data, INT64)
    cdef double number
    memcpy(&number, &bits, sizeof(number))
    return number


cdef dict KNOWN_UUIDS = {}


cdef object uuid_of(Bytes p):
    """Return a UUID object, which takes long to create; requests name the same topics."""
    content = PyBytes_FromStringAndSize(<char *>p, UUID_BYTES)
    found = KNOWN_UUIDS.get(content)
    if found is None:
        found = _Uuid(bytes=content)
        if len(KNOWN_UUIDS) >= MAX_ELEMENTS:
            KNOWN_UUIDS.clear()
        KNOWN_UUIDS[content] = found
    return found


def encode_message(Layout layout, message, bytearray tail, list parts, Py_ssize_t min_part_bytes):
    """Append a message to `tail`, and return the new tail.

    Bytes of at least `min_part_bytes` are appended to `parts` uncopied, after the tail so far.
    """
    cdef Output output
    cdef list pieces = []
    cdef Py_ssize_t room = MAX_ELEMENTS, used
    output.start = output.p = output.end = NULL
    try:
        reserve(&output, 256)
        if not encode_struct(&output, layout, message, pieces, min_part_bytes, &room):
            return None
        if pieces:
            tail += pieces[0]
            parts.append(tail)
            parts.extend(pieces[1:])
            return PyByteArray_FromStringAndSize(
                <char *>output.start, output.p - output.start
            )
        used = PyByteArray_GET_SIZE(tail)
        PyByteArray_Resize(tail, used + (output.p - output.start))
        memcpy(PyByteArray_AS_STRING(tail) + used, output.start, output.p - output.start)
        return tail
    finally:
        free(output.start)


cdef bint encode_struct(
    Output *output,
    Layout layout,
    message,
    list pieces,
    Py_ssize_t min_part_bytes,
    Py_ssize_t *room,
) except -1:
    """Write a message; return False if that is left to pure Python, as all of these do."""
    cdef Py_ssize_t index
    cdef PyObject *value
    if type(message) is not layout.message:
        return False
    for index in range(layout.other_count):
        if layout.others[index].is_checked:
            value = slot_of(message, layout.others[index].offset)
            if value == NULL or not is_default(<object>value, layout.defaults[index]):
                return False
    for index in range(layout.field_count):
        value = slot_of(message, layout.fields[index].offset)
        if value == NULL or not encode_value(
            output, &layout.fields[index], <object>value, pieces, min_part_bytes, room
        ):
            return False
    if layout.is_flexible:
        reserve(output, 1)
        output.p[0] = 0
        output.p += 1
    return True


cdef inline bint is_default(value, default) except -1:
    if value is default:
        return True
    if type(value) is list or type(value) is tuple:
        return len(value) == 0 and default == ()
    return type(value) is type(default) and type(value) in (int, str, bool) and value == default


cdef bint encode_value(
    Output *output,
    Slot *slot,
    value,
    list pieces,
    Py_ssize_t min_part_bytes,
    Py_ssize_t *room,
) except -1:
    cdef Field field
    cdef Py_buffer view
    if slot.kind <= FLOAT64:
        return write_fixed(output, slot.kind, value)
    if slot.kind == UUID:
        return type(value) is _Uuid and write_content(output, value.bytes)
    if slot.kind == STRUCT:
        if slot.is_nullable:
            write_number(output, -1 if value is None else 1, 1)
            if value is None:
                return True
        return encode_struct(
            output, <Layout>slot.layout, value, pieces, min_part_bytes, room
        )
    if value is None:
        return slot.is_nullable and write_length(output, slot, -1)
    if slot.kind == ARRAY:
        return encode_array(output, slot, value, pieces, min_part_bytes, room)
    if slot.kind == TEXT:
        if not text_of(value, &field) or not write_length(output, slot, field.size):
            return False
        write_bytes(output, field.start, field.size)
        return True
    if not open_buffer(value, &view):
        return False
    try:
        if view.len != len(value) or not write_length(output, slot, view.len):
            return False
        if view.len >= min_part_bytes:
            pieces.append(
                PyByteArray_FromStringAndSize(<char *>output.start, output.p - output.start)
            )
            pieces.append(value)
            output.p = output.start
        else:
            write_bytes(output, <char *>view.buf, view.len)
        return True
    finally:
        PyBuffer_Release(&view)


cdef bint encode_array(
    Output *output,
    Slot *slot,
    values,
    list pieces,
    Py_ssize_t min_part_bytes,
    Py_ssize_t *room,
) except -1:
    if type(values) is not list and type(values) is not tuple:
        return False
    room[0] -= len(values)
    if room[0] < 0 or not write_length(output, slot, len(values)):
        return False
    for value in values:
        if not encode_value(output, slot.element, value, pieces, min_part_bytes, room):
            return False
    return True


cdef inline bint write_fixed(Output *output, int kind, value) except -1:
    cdef int overflow = 0
    cdef int64_t number, limit
    cdef double real
    if kind == FLOAT64:
        if type(value) is not float:
            return False
        real = value
        memcpy(&number, &real, sizeof(number))
        write_number(output, number, 8)
        return True
    if kind == BOOL:
        if type(value) is not bool:
            return False
        write_number(output, value is True, 1)
        return True
    if not PyLong_Check(value):
        return False
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow:
        return False
    if kind == UINT16:
        if not 0 <= number <= 0xFFFF:
            return False
    elif kind != INT64:
        limit = <int64_t>1 << (8 * fixed_size(kind) - 1)
        if not -limit <= number < limit:
            return False
    write_number(output, number, fixed_size(kind))
    return True


cdef inline bint write_length(Output *output, Slot *slot, Py_ssize_t size) except -1:
    cdef uint64_t rest = <uint64_t>(size + 1)
    if slot.is_compact:
        if rest > 0xFFFFFFFF:
            return False
        reserve(output, MAX_VARINT_BYTES)
        while rest > 0x7F:
            output.p[0] = <uint8_t>(rest & 0x7F | 0x80)
            output.p += 1
            rest >>= 7
        output.p[0] = <uint8_t>rest
        output.p += 1
        return True
    if size > (0x7FFF if slot.kind == TEXT else INT32_MAX):
        return False
    write_number(output, size, 2 if slot.kind == TEXT else 4)
    return True


cdef inline int write_number(Output *output, int64_t number, Py_ssize_t size) except -1:
    cdef Py_ssize_t index
    reserve(output, size)
    for index in range(size):
        output.p[index] = <uint8_t>(<uint64_t>number >> 8 * (size - 1 - index))
    output.p += size
    return 0


cdef inline bint write_content(Output *output, bytes content) except -1:
    write_bytes(output, PyBytes_AS_STRING(content), PyBytes_GET_SIZE(content))
    return True


cdef inline int write_bytes(Output *output, const char *start, Py_ssize_t size) except -1:
    if size > 0:
        reserve(output, size)
        memcpy(output.p, start, size)
        output.p += size
    return 0


# Residency.

cdef enum:
    PAGES_PER_CALL = 32


def is_resident(mapped, size_t step_bytes):
    """Whether a part of a mapped file is in the page cache.

    A few pages are asked for all at once, of more one at every `step_bytes` and the last one.
    Unlike a read that must not wait, this never starts to read what is missing.
    """
    cdef Py_buffer view
    cdef size_t page_bytes = <size_t>sysconf(_SC_PAGESIZE)
    cdef size_t address, end
    PyObject_GetBuffer(mapped, &view, PyBUF_SIMPLE)
    try:
        address = <size_t>view.buf
        end = address + <size_t>view.len
        if address == end:
            return True
        if end - address <= (PAGES_PER_CALL - 1) * page_bytes:
            return are_pages_resident(address, end, page_bytes)
        while address < end:
            if not are_pages_resident(address, address + 1, page_bytes):
                return False
            address += step_bytes
        return are_pages_resident(end - 1, end, page_bytes)
    finally:
        PyBuffer_Release(&view)


cdef inline bint are_pages_resident(size_t start, size_t end, size_t page_bytes) noexcept nogil:
    """Ask for at most PAGES_PER_CALL pages."""
    cdef uint8_t residency[PAGES_PER_CALL]
    cdef size_t page
    start -= start % page_bytes
    if mincore(<void *>start, end - start, residency) < 0:
        return False
    for page in range((end - start + page_bytes - 1) // page_bytes):
        if not residency[page] & 1:
            return False
    return True
