-- The functions of version 2. A function whose first parameter "moment" is NULL takes the time from
-- the server's clock, which all instances share.

CREATE FUNCTION present(moment bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(moment, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
$$;

CREATE FUNCTION add_stored(change bigint) RETURNS void LANGUAGE sql VOLATILE AS $$
    UPDATE totals SET size = size + change WHERE shard = pg_backend_pid() % 16
$$;

-- Stores a submission and returns true, or returns false if its key is known. A refusal is an error,
-- which undoes the whole call: TD001 for a spent token, TD002 for a full store, TD003 for a used
-- quota. A token of an epoch without a partition causes a check_violation.
--
-- All calls lock in the order key, token, quota, total, and therefore never wait in a circle.
CREATE FUNCTION admit(
    moment bigint, lease bigint, new_id bytea, new_key bytea, new_client text, new_fingerprint bytea,
    new_server text, new_upload bigint, new_path text, new_fields bytea, new_digest bytea,
    new_body bytea, overhead bigint, max_stored bigint, max_submissions bigint, max_bytes bigint,
    token_epoch bigint, token_nonce bytea, is_collected boolean
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    start bigint := present(moment);
    body_bytes bigint := length(new_body);
BEGIN
    INSERT INTO submissions (id, key, client, fingerprint, server, accepted, due, upload, size,
            collected)
        VALUES (new_id, new_key, new_client, new_fingerprint, new_server, start, start + lease,
            new_upload, overhead + body_bytes, is_collected)
        ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF token_nonce IS NOT NULL THEN
        INSERT INTO spent VALUES (token_epoch, token_nonce) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'TD001';
        END IF;
    END IF;
    IF (SELECT sum(size) FROM totals) + overhead + body_bytes > max_stored THEN
        RAISE EXCEPTION USING ERRCODE = 'TD002';
    END IF;
    IF max_submissions IS NOT NULL OR max_bytes IS NOT NULL THEN
        INSERT INTO usage VALUES (new_client, start / 86400000, 0, 0)
            ON CONFLICT DO NOTHING;
        UPDATE usage SET submissions = usage.submissions + 1, bytes = usage.bytes + body_bytes
            WHERE client = new_client AND day = start / 86400000
                AND (max_submissions IS NULL OR usage.submissions < max_submissions)
                AND (max_bytes IS NULL OR usage.bytes + body_bytes <= max_bytes);
        IF NOT FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'TD003';
        END IF;
    END IF;
    INSERT INTO contents VALUES (new_id, new_path, new_fields, new_digest, new_body);
    PERFORM add_stored(overhead + body_bytes);
    RETURN true;
END
$$;

-- Releases the collected submissions of a server at one time, if their batch ends (see Rule::ends).
-- Returns their number. One call at a time looks at them, since the rest of a batch that another call
-- has released would be a small batch.
CREATE FUNCTION release(
    moment bigint, for_server text, full_size bigint, fewest bigint, wait bigint, longest bigint
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    start bigint := present(moment);
    members bigint;
    age bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(to_regclass('submissions')::oid::bigint) THEN
        RETURN 0;
    END IF;
    SELECT count(*), start - min(accepted) INTO members, age
        FROM submissions WHERE collected AND server = for_server;
    IF members = 0
        OR NOT (members >= full_size OR (members >= fewest AND age >= wait) OR age >= longest)
    THEN
        RETURN 0;
    END IF;
    UPDATE submissions SET due = start, collected = false
        WHERE collected AND server = for_server;
    GET DIAGNOSTICS members = ROW_COUNT;
    RETURN members;
END
$$;

-- Ends a delivery, removes the content, and stores an answer. The first answer stays.
CREATE FUNCTION finish(
    moment bigint, ended_id bytea, new_state smallint, new_status integer, new_size bigint,
    answer_fields bytea, answer_body bytea
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    old record;
BEGIN
    SELECT state, size INTO old FROM submissions WHERE id = ended_id FOR UPDATE;
    IF NOT FOUND OR old.state = 1 OR old.state = new_state THEN
        RETURN;
    END IF;
    UPDATE submissions SET state = new_state, status = new_status, size = new_size,
        ended = present(moment) WHERE id = ended_id;
    DELETE FROM contents WHERE id = ended_id;
    IF answer_body IS NOT NULL THEN
        INSERT INTO answers VALUES (ended_id, answer_fields, answer_body);
    END IF;
    PERFORM add_stored(new_size - old.size);
END
$$;

-- Notes the time of a removal. Returns the time before which ended submissions may be removed, or
-- NULL if the last removal was too long ago.
CREATE FUNCTION begin_removal(moment bigint, keep bigint, gap bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    start bigint := present(moment);
    last bigint;
BEGIN
    SELECT cleaned INTO last FROM progress FOR UPDATE;
    UPDATE progress SET cleaned = start;
    IF last IS NULL OR start - last > gap THEN
        RETURN NULL;
    END IF;
    -- The clock was ahead when these ended.
    UPDATE submissions SET ended = start WHERE ended > start + 86400000;
    DELETE FROM usage WHERE day < (start - keep) / 86400000;
    RETURN start - keep;
END
$$;

-- Removes up to "most" submissions that ended before a time. Returns their number.
CREATE FUNCTION remove_ended(before bigint, most integer) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    ids bytea[];
    freed bigint;
BEGIN
    SELECT array_agg(id), sum(size) INTO ids, freed FROM (
        SELECT id, size FROM submissions WHERE ended < before
            ORDER BY ended LIMIT most FOR UPDATE SKIP LOCKED
    ) AS old;
    IF ids IS NULL THEN
        RETURN 0;
    END IF;
    DELETE FROM answers WHERE id = ANY (ids);
    DELETE FROM submissions WHERE id = ANY (ids);
    PERFORM add_stored(-freed);
    RETURN cardinality(ids);
END
$$;

-- Creates the partition of an epoch. Returns false if the epoch is over.
CREATE FUNCTION begin_epoch(epoch bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF epoch < (SELECT first_epoch FROM progress FOR UPDATE) THEN
        RETURN false;
    END IF;
    IF to_regclass('spent_' || epoch) IS NULL THEN
        EXECUTE format('CREATE TABLE %I PARTITION OF spent FOR VALUES IN (%s)',
            'spent_' || epoch, epoch);
    END IF;
    RETURN true;
END
$$;

-- Drops the partitions of all epochs before "first".
CREATE FUNCTION end_epochs(first bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    part name;
BEGIN
    UPDATE progress SET first_epoch = greatest(first_epoch, first);
    FOR part IN
        SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
            WHERE inhparent = to_regclass('spent') AND substr(relname, 7)::bigint < first
    LOOP
        EXECUTE format('DROP TABLE %I', part);
    END LOOP;
END
$$;
