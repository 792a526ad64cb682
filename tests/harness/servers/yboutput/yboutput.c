/*
 * yboutput.c: a test double of YugabyteDB's output plugin of that name, for PostgreSQL 15.
 *
 * It sends, for ordinary tables of an ordinary server, the messages that YugabyteDB sends: pgoutput's
 * wire with replica identity letter c, the mark u for every column that an update did not write, and a
 * change of the primary key as a delete and an insert. What it cannot stand in for is listed in
 * README.md. It is written from published descriptions of the wire; no YugabyteDB server was run.
 *
 * The emulated replica identity of a table stands in its comment (yb:CHANGE, yb:DEFAULT, yb:FULL,
 * yb:NOTHING; CHANGE without one), because PostgreSQL cannot store it. The table's own identity must
 * be FULL, so that the whole old row is in the WAL to compare with, or NOTHING for yb:NOTHING.
 * identity.sql sets both.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_publication_rel.h"
#include "catalog/pg_type.h"
#include "commands/comment.h"
#include "commands/defrem.h"
#include "fmgr.h"
#include "libpq/pqformat.h"
#include "replication/logical.h"
#include "replication/logicalproto.h"
#include "replication/output_plugin.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

#if PG_VERSION_NUM < 150000 || PG_VERSION_NUM >= 160000
#error "this double is written against PostgreSQL 15"
#endif

PG_MODULE_MAGIC;

extern void _PG_init(void);
extern void _PG_output_plugin_init(OutputPluginCallbacks *callbacks);

#define IDENTITY_CHANGE 'c'			/* the letter that PostgreSQL does not have */
#define IDENTITY_PREFIX "yb:"

#define PROTOCOL_OLDEST 1
#define PROTOCOL_NEWEST 3
#define PROTOCOL_STREAMING 2
#define PROTOCOL_TWO_PHASE 3

/* What one connection asked for and where its output stands; lives in the context's memory. */
typedef struct Session
{
	MemoryContext lasting;		/* publications and keys */
	MemoryContext passing;		/* emptied after every change */
	List	   *publication_names;
	List	   *publications;
	bool		binary;
	bool		begun;			/* Begin of the present transaction was sent */
} Session;

/* What is known of a relation until it is invalidated. */
typedef struct Known
{
	Oid			relid;			/* hash key: first */
	bool		valid;
	bool		announced;
	char		identity;		/* the emulated one */
	bool		inserts;
	bool		updates;
	bool		deletes;
	Bitmapset  *key;			/* attribute numbers of the primary key, as they are */
} Known;

/* A row, its cells one by one: not sent, NULL, or a value. */
typedef struct Row
{
	Datum	   *values;
	bool	   *nulls;
	bool	   *unsent;
} Row;

/*
 * Cache callbacks cannot be withdrawn and know no context, so what they touch is static. A backend has
 * one decoding context at a time.
 */
static HTAB *known_relations = NULL;
static bool publications_valid = false;

static bool old_generation = false;
static bool accept_hash_range = false;


/* ---- settings of the double ---- */

void
_PG_init(void)
{
	DefineCustomBoolVariable("yboutput.old_generation",
							 "Send the meaningless old tuples of early releases.",
							 "Updates under CHANGE then carry an old key tuple that is all u, "
							 "under DEFAULT one that is all n.",
							 &old_generation, false, PGC_USERSET, 0, NULL, NULL, NULL);
	DefineCustomBoolVariable("yboutput.accept_hash_range",
							 "Accept the option hash_range, and ignore it.",
							 "YugabyteDB's walsender takes it out before the plugin sees it.",
							 &accept_hash_range, false, PGC_USERSET, 0, NULL, NULL, NULL);
	MarkGUCPrefixReserved("yboutput");
}


/* ---- options ---- */

static uint32
parse_protocol(const char *text)
{
	char	   *end;
	unsigned long parsed;

	errno = 0;
	parsed = strtoul(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid proto_version")));
	if (parsed > PG_UINT32_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("proto_version \"%s\" out of range", text)));
	return (uint32) parsed;
}

/* The six options that pgoutput of PostgreSQL 15 knows, with its texts; others are errors. */
static void
parse_options(Session *session, List *options)
{
	static const char *const names[] = {
		"proto_version", "publication_names", "binary", "messages", "streaming", "two_phase"
	};
	bool		given[lengthof(names)] = {false};
	uint32		protocol = 0;
	bool		streaming = false;
	bool		two_phase = false;
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);
		size_t		which = 0;

		if (accept_hash_range && strcmp(option->defname, "hash_range") == 0)
			continue;
		while (which < lengthof(names) && strcmp(option->defname, names[which]) != 0)
			which++;
		if (which == lengthof(names))
			elog(ERROR, "unrecognized pgoutput option: %s", option->defname);
		if (given[which])
			ereport(ERROR,
					(errcode(ERRCODE_SYNTAX_ERROR),
					 errmsg("conflicting or redundant options")));
		given[which] = true;

		switch (which)
		{
			case 0:
				protocol = parse_protocol(strVal(option->arg));
				break;
			case 1:
				if (!SplitIdentifierString(pstrdup(strVal(option->arg)), ',',
										   &session->publication_names))
					ereport(ERROR,
							(errcode(ERRCODE_INVALID_NAME),
							 errmsg("invalid publication_names syntax")));
				break;
			case 2:
				session->binary = defGetBoolean(option);
				break;
			case 3:
				(void) defGetBoolean(option);	/* messages are never sent */
				break;
			case 4:
				streaming = defGetBoolean(option);
				break;
			case 5:
				two_phase = defGetBoolean(option);
				break;
		}
	}

	if (protocol > PROTOCOL_NEWEST)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("client sent proto_version=%u but we only support protocol %d or lower",
						protocol, PROTOCOL_NEWEST)));
	if (protocol < PROTOCOL_OLDEST)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("client sent proto_version=%u but we only support protocol %d or higher",
						protocol, PROTOCOL_OLDEST)));
	if (session->publication_names == NIL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("publication_names parameter missing")));
	if (streaming && protocol < PROTOCOL_STREAMING)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("requested proto_version=%u does not support streaming, need %d or higher",
						protocol, PROTOCOL_STREAMING)));
	if (two_phase && protocol < PROTOCOL_TWO_PHASE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("requested proto_version=%u does not support two-phase commit, need %d or higher",
						protocol, PROTOCOL_TWO_PHASE)));
}


/* ---- what is known of relations ---- */

static void
forget_relation(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS all;
	Known	   *known;

	if (known_relations == NULL)
		return;
	if (OidIsValid(relid))
	{
		known = hash_search(known_relations, &relid, HASH_FIND, NULL);
		if (known != NULL)
			known->valid = false;
		return;
	}
	hash_seq_init(&all, known_relations);
	while ((known = hash_seq_search(&all)) != NULL)
		known->valid = false;
}

static void
forget_publications(Datum arg, int cacheid, uint32 hashvalue)
{
	publications_valid = false;
	forget_relation((Datum) 0, InvalidOid);
}

/* Called when the context's memory goes, on success and on error alike. */
static void
forget_everything(void *arg)
{
	known_relations = NULL;
	publications_valid = false;
}

static void
watch_catalogue(void)
{
	static bool watching = false;

	if (watching)
		return;
	CacheRegisterRelcacheCallback(forget_relation, (Datum) 0);
	CacheRegisterSyscacheCallback(PUBLICATIONOID, forget_publications, (Datum) 0);
	CacheRegisterSyscacheCallback(PUBLICATIONRELMAP, forget_publications, (Datum) 0);
	CacheRegisterSyscacheCallback(PUBLICATIONNAMESPACEMAP, forget_publications, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, forget_publications, (Datum) 0);
	watching = true;
}

static void
load_publications(Session *session)
{
	MemoryContext before = MemoryContextSwitchTo(session->lasting);
	ListCell   *cell;

	list_free_deep(session->publications);
	session->publications = NIL;
	foreach(cell, session->publication_names)
	{
		session->publications =
			lappend(session->publications, GetPublicationByName(lfirst(cell), false));
	}
	MemoryContextSwitchTo(before);
	publications_valid = true;
}

/* Row filters and column lists are outside what this double stands in for: better loud than wrong. */
static void
refuse_filters(Oid relid, Publication *publication)
{
	HeapTuple	tuple;
	bool		no_filter;
	bool		no_list;

	tuple = SearchSysCache2(PUBLICATIONRELMAP,
							ObjectIdGetDatum(relid), ObjectIdGetDatum(publication->oid));
	if (!HeapTupleIsValid(tuple))
		return;
	(void) SysCacheGetAttr(PUBLICATIONRELMAP, tuple, Anum_pg_publication_rel_prqual, &no_filter);
	(void) SysCacheGetAttr(PUBLICATIONRELMAP, tuple, Anum_pg_publication_rel_prattrs, &no_list);
	ReleaseSysCache(tuple);
	if (!no_filter || !no_list)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the test double of yboutput knows no row filters and no column lists"),
				 errdetail("Publication \"%s\" has one.", publication->name)));
}

/* Whether a publication covers the table, by itself or through a table it is a partition of. */
static bool
covers(Publication *publication, Relation relation, List *ancestors)
{
	Oid			relid = RelationGetRelid(relation);
	Oid			schema = RelationGetNamespace(relation);
	ListCell   *cell;

	refuse_filters(relid, publication);
	foreach(cell, ancestors)
		refuse_filters(lfirst_oid(cell), publication);
	return publication->alltables ||
		list_member_oid(GetRelationPublications(relid), publication->oid) ||
		list_member_oid(GetSchemaPublications(schema), publication->oid) ||
		OidIsValid(GetTopMostAncestorInPublication(publication->oid, ancestors, NULL));
}

static void
find_published(Session *session, Relation relation, Known *known)
{
	List	   *ancestors = NIL;
	ListCell   *cell;

	if (relation->rd_rel->relispartition)
		ancestors = get_partition_ancestors(RelationGetRelid(relation));
	foreach(cell, session->publications)
	{
		Publication *publication = lfirst(cell);

		if (!covers(publication, relation, ancestors))
			continue;
		if (publication->pubviaroot && ancestors != NIL)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("the test double of yboutput knows no publish_via_partition_root")));
		known->inserts |= publication->pubactions.pubinsert;
		known->updates |= publication->pubactions.pubupdate;
		known->deletes |= publication->pubactions.pubdelete;
	}
}

static char
emulated_identity(Relation relation)
{
	static const struct
	{
		const char *word;
		char		letter;
	}			identities[] = {
		{"CHANGE", IDENTITY_CHANGE},
		{"DEFAULT", REPLICA_IDENTITY_DEFAULT},
		{"FULL", REPLICA_IDENTITY_FULL},
		{"NOTHING", REPLICA_IDENTITY_NOTHING},
	};
	char	   *comment = GetComment(RelationGetRelid(relation), RelationRelationId, 0);
	size_t		prefix = strlen(IDENTITY_PREFIX);

	if (comment == NULL || strncmp(comment, IDENTITY_PREFIX, prefix) != 0)
		return IDENTITY_CHANGE;
	for (size_t i = 0; i < lengthof(identities); i++)
	{
		if (strcmp(comment + prefix, identities[i].word) == 0)
			return identities[i].letter;
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("comment \"%s\" of table \"%s\" names no replica identity",
					comment, RelationGetRelationName(relation)),
			 errhint("yb:CHANGE, yb:DEFAULT, yb:FULL and yb:NOTHING do.")));
}

/* The attribute numbers of the primary key, NULL without one. */
static Bitmapset *
primary_key(Session *session, Relation relation)
{
	Oid			constraint;
	Bitmapset  *shifted = get_primary_key_attnos(RelationGetRelid(relation), false, &constraint);
	Bitmapset  *key = NULL;
	MemoryContext before = MemoryContextSwitchTo(session->lasting);
	int			at = -1;

	while ((at = bms_next_member(shifted, at)) >= 0)
		key = bms_add_member(key, at + FirstLowInvalidHeapAttributeNumber);
	MemoryContextSwitchTo(before);
	return key;
}

static Known *
know_relation(Session *session, Relation relation)
{
	Oid			relid = RelationGetRelid(relation);
	bool		found;
	Known	   *known;

	if (!publications_valid)
		load_publications(session);
	known = hash_search(known_relations, &relid, HASH_ENTER, &found);
	if (!found)
	{
		known->valid = false;
		known->key = NULL;
	}
	if (known->valid)
		return known;

	bms_free(known->key);
	known->announced = known->inserts = known->updates = known->deletes = false;
	known->identity = emulated_identity(relation);
	known->key = primary_key(session, relation);
	/* YugabyteDB leaves tables without primary key out of a slot, silently */
	if (known->key != NULL)
		find_published(session, relation, known);
	known->valid = true;
	return known;
}


/* ---- rows ---- */

/* Dropped and generated columns are in no message. */
static bool
in_messages(Form_pg_attribute column)
{
	return !column->attisdropped && column->attgenerated == '\0';
}

static int
count_columns(TupleDesc columns)
{
	int			count = 0;

	for (int i = 0; i < columns->natts; i++)
		count += in_messages(TupleDescAttr(columns, i));
	return count;
}

static Row
read_row(TupleDesc columns, HeapTuple tuple)
{
	Row			row;

	row.values = palloc(columns->natts * sizeof(Datum));
	row.nulls = palloc(columns->natts * sizeof(bool));
	row.unsent = palloc0(columns->natts * sizeof(bool));
	heap_deform_tuple(tuple, columns, row.values, row.nulls);
	return row;
}

/* A row of a table's width whose cells are all NULL, or all not sent. */
static Row
blank_row(TupleDesc columns, bool unsent)
{
	Row			row;

	row.values = palloc0(columns->natts * sizeof(Datum));
	row.nulls = palloc(columns->natts * sizeof(bool));
	row.unsent = palloc(columns->natts * sizeof(bool));
	memset(row.nulls, true, columns->natts);
	memset(row.unsent, unsent, columns->natts);
	return row;
}

/* Whether an update left the value in its TOAST table: it is not in the WAL, and unchanged. */
static bool
left_in_toast(Form_pg_attribute column, const Row *row, int i)
{
	return !row->nulls[i] && column->attlen == -1 &&
		VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(row->values[i]));
}

static bool
same_value(Form_pg_attribute column, const Row *old, const Row *new, int i)
{
	if (left_in_toast(column, new, i))
		return true;
	if (old->nulls[i] || new->nulls[i])
		return old->nulls[i] && new->nulls[i];
	return datum_image_eq(old->values[i], new->values[i], column->attbyval, column->attlen);
}

static bool
in_key(const Known *known, int i)
{
	return bms_is_member(i + 1, known->key);
}

static bool
key_changed(const Known *known, TupleDesc columns, const Row *old, const Row *new)
{
	for (int i = 0; i < columns->natts; i++)
	{
		if (in_key(known, i) && !same_value(TupleDescAttr(columns, i), old, new, i))
			return true;
	}
	return false;
}

/* Complete a new row: YugabyteDB has no TOAST, its rows lack nothing. */
static void
fill_from_old(TupleDesc columns, const Row *old, Row *new)
{
	for (int i = 0; i < columns->natts; i++)
	{
		if (left_in_toast(TupleDescAttr(columns, i), new, i))
			new->values[i] = old->values[i];
	}
}

/* CHANGE: an update holds the key and what it wrote; a value that stayed the same counts as unwritten. */
static void
drop_unwritten(const Known *known, TupleDesc columns, const Row *old, Row *new)
{
	for (int i = 0; i < columns->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(columns, i);

		if (in_messages(column) && !in_key(known, i))
			new->unsent[i] = same_value(column, old, new, i);
	}
}

/* CHANGE and DEFAULT: a delete holds the key; the other cells are NULL, not "not sent". */
static void
keep_key(const Known *known, TupleDesc columns, Row *old)
{
	for (int i = 0; i < columns->natts; i++)
		old->nulls[i] |= !in_key(known, i);
}


/* ---- messages ---- */

static void
write_value(StringInfo out, Form_pg_attribute column, Datum value, bool binary)
{
	Oid			function;
	bool		is_varlena;

	if (binary)
	{
		bytea	   *sent;

		getTypeBinaryOutputInfo(column->atttypid, &function, &is_varlena);
		sent = OidSendFunctionCall(function, value);
		pq_sendbyte(out, LOGICALREP_COLUMN_BINARY);
		pq_sendint32(out, VARSIZE(sent) - VARHDRSZ);
		pq_sendbytes(out, VARDATA(sent), VARSIZE(sent) - VARHDRSZ);
	}
	else
	{
		char	   *text;

		getTypeOutputInfo(column->atttypid, &function, &is_varlena);
		text = OidOutputFunctionCall(function, value);
		pq_sendbyte(out, LOGICALREP_COLUMN_TEXT);
		pq_sendcountedtext(out, text, strlen(text), false);
	}
}

static void
write_row(StringInfo out, TupleDesc columns, const Row *row, bool binary)
{
	pq_sendint16(out, count_columns(columns));
	for (int i = 0; i < columns->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(columns, i);

		if (!in_messages(column))
			continue;
		/* in this order: a column that was not sent is u, though its datum is NULL */
		if (row->unsent[i])
			pq_sendbyte(out, LOGICALREP_COLUMN_UNCHANGED);
		/* values of composite types are not sent by default */
		else if (row->nulls[i] || type_is_rowtype(column->atttypid))
			pq_sendbyte(out, LOGICALREP_COLUMN_NULL);
		else
			write_value(out, column, row->values[i], binary);
	}
}

static void
write_type(LogicalDecodingContext *ctx, Oid type)
{
	OutputPluginPrepareWrite(ctx, false);
	logicalrep_write_typ(ctx->out, InvalidTransactionId, type);
	OutputPluginWrite(ctx, false);
}

/* By hand: the server's own function would write the letter of the table's real identity. */
static void
write_relation(LogicalDecodingContext *ctx, Relation relation, const Known *known)
{
	TupleDesc	columns = RelationGetDescr(relation);
	Oid			schema = RelationGetNamespace(relation);
	StringInfo	out;

	OutputPluginPrepareWrite(ctx, false);
	out = ctx->out;
	pq_sendbyte(out, LOGICAL_REP_MSG_RELATION);
	pq_sendint32(out, RelationGetRelid(relation));
	pq_sendstring(out, schema == PG_CATALOG_NAMESPACE ? "" : get_namespace_name(schema));
	pq_sendstring(out, RelationGetRelationName(relation));
	pq_sendbyte(out, known->identity);
	pq_sendint16(out, count_columns(columns));
	for (int i = 0; i < columns->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(columns, i);
		bool		identifies;

		if (!in_messages(column))
			continue;
		identifies = known->identity == REPLICA_IDENTITY_FULL ||
			(known->identity != REPLICA_IDENTITY_NOTHING && in_key(known, i));
		pq_sendbyte(out, identifies);
		pq_sendstring(out, NameStr(column->attname));
		pq_sendint32(out, column->atttypid);
		pq_sendint32(out, column->atttypmod);
	}
	OutputPluginWrite(ctx, false);
}

/* Begin and Relation come with the first change that needs them. */
static void
announce(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, Relation relation, Known *known)
{
	Session    *session = ctx->output_plugin_private;
	TupleDesc	columns = RelationGetDescr(relation);

	if (!session->begun)
	{
		OutputPluginPrepareWrite(ctx, true);
		logicalrep_write_begin(ctx->out, txn);
		OutputPluginWrite(ctx, true);
		session->begun = true;
	}
	if (known->announced)
		return;
	for (int i = 0; i < columns->natts; i++)
	{
		Form_pg_attribute column = TupleDescAttr(columns, i);

		if (in_messages(column) && column->atttypid >= FirstGenbkiObjectId)
			write_type(ctx, column->atttypid);
	}
	write_relation(ctx, relation, known);
	known->announced = true;
}

/* One row message; old and new may be NULL, old_mark says what old is. */
static void
write_change(LogicalDecodingContext *ctx, char kind, Relation relation,
			 char old_mark, const Row *old, const Row *new)
{
	Session    *session = ctx->output_plugin_private;
	TupleDesc	columns = RelationGetDescr(relation);
	StringInfo	out;

	OutputPluginPrepareWrite(ctx, true);
	out = ctx->out;
	pq_sendbyte(out, kind);
	pq_sendint32(out, RelationGetRelid(relation));
	if (old != NULL)
	{
		pq_sendbyte(out, old_mark);
		write_row(out, columns, old, session->binary);
	}
	if (new != NULL)
	{
		pq_sendbyte(out, 'N');
		write_row(out, columns, new, session->binary);
	}
	OutputPluginWrite(ctx, true);
}

static void
send_insert(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, Relation relation, Known *known,
			const Row *new)
{
	if (!known->inserts)
		return;
	announce(ctx, txn, relation, known);
	write_change(ctx, LOGICAL_REP_MSG_INSERT, relation, '\0', NULL, new);
}

static void
send_delete(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, Relation relation, Known *known,
			Row *old)
{
	if (!known->deletes)
		return;
	announce(ctx, txn, relation, known);
	if (known->identity == REPLICA_IDENTITY_FULL)
	{
		write_change(ctx, LOGICAL_REP_MSG_DELETE, relation, 'O', old, NULL);
		return;
	}
	keep_key(known, RelationGetDescr(relation), old);
	write_change(ctx, LOGICAL_REP_MSG_DELETE, relation, 'K', old, NULL);
}

static void
send_update(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, Relation relation, Known *known,
			Row *old, Row *new)
{
	TupleDesc	columns = RelationGetDescr(relation);
	bool		is_change = known->identity == IDENTITY_CHANGE;
	Row			meaningless;

	if (key_changed(known, columns, old, new))
	{
		fill_from_old(columns, old, new);
		send_delete(ctx, txn, relation, known, old);
		send_insert(ctx, txn, relation, known, new);
		return;
	}
	if (!known->updates)
		return;
	announce(ctx, txn, relation, known);
	if (is_change)
		drop_unwritten(known, columns, old, new);
	fill_from_old(columns, old, new);
	if (known->identity == REPLICA_IDENTITY_FULL)
	{
		write_change(ctx, LOGICAL_REP_MSG_UPDATE, relation, 'O', old, new);
		return;
	}
	if (!old_generation)
	{
		write_change(ctx, LOGICAL_REP_MSG_UPDATE, relation, '\0', NULL, new);
		return;
	}
	meaningless = blank_row(columns, is_change);
	write_change(ctx, LOGICAL_REP_MSG_UPDATE, relation, 'K', &meaningless, new);
}


/* ---- callbacks ---- */

static void
on_startup(LogicalDecodingContext *ctx, OutputPluginOptions *output, bool is_init)
{
	Session    *session = palloc0(sizeof(Session));
	HASHCTL		layout = {.keysize = sizeof(Oid), .entrysize = sizeof(Known)};
	MemoryContextCallback *at_end;

	output->output_type = OUTPUT_PLUGIN_BINARY_OUTPUT;
	ctx->output_plugin_private = session;
	if (is_init)
		return;					/* the slot is being created: nothing was asked for yet */

	parse_options(session, ctx->output_plugin_options);
	session->lasting = AllocSetContextCreate(ctx->context, "yboutput, lasting",
											 ALLOCSET_SMALL_SIZES);
	session->passing = AllocSetContextCreate(ctx->context, "yboutput, passing",
											 ALLOCSET_DEFAULT_SIZES);
	layout.hcxt = session->lasting;
	known_relations = hash_create("yboutput relations", 128, &layout,
								  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	publications_valid = false;
	at_end = palloc0(sizeof(MemoryContextCallback));
	at_end->func = forget_everything;
	MemoryContextRegisterResetCallback(ctx->context, at_end);
	watch_catalogue();
}

static void
on_begin(LogicalDecodingContext *ctx, ReorderBufferTXN *txn)
{
	((Session *) ctx->output_plugin_private)->begun = false;
}

static void
on_commit(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, XLogRecPtr commit_lsn)
{
	Session    *session = ctx->output_plugin_private;

	OutputPluginUpdateProgress(ctx, !session->begun);
	if (!session->begun)
		return;
	OutputPluginPrepareWrite(ctx, true);
	logicalrep_write_commit(ctx->out, txn, commit_lsn);
	OutputPluginWrite(ctx, true);
}

/* The whole old row. The double cannot do without it. */
static Row
read_old(Relation relation, ReorderBufferChange *change)
{
	if (relation->rd_rel->relreplident != REPLICA_IDENTITY_FULL ||
		change->data.tp.oldtuple == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the test double of yboutput needs the old rows of table \"%s\"",
						RelationGetRelationName(relation)),
				 errhint("SELECT yb_replica_identity('%s', 'CHANGE') before it is changed.",
						 RelationGetRelationName(relation))));
	return read_row(RelationGetDescr(relation), &change->data.tp.oldtuple->tuple);
}

static void
send_row(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, Relation relation, Known *known,
		 ReorderBufferChange *change)
{
	TupleDesc	columns = RelationGetDescr(relation);
	/* With identity NOTHING the server refuses updates and deletes of what is published. */
	bool		identified = known->identity != REPLICA_IDENTITY_NOTHING;
	Row			old;
	Row			new;

	switch (change->action)
	{
		case REORDER_BUFFER_CHANGE_INSERT:
			new = read_row(columns, &change->data.tp.newtuple->tuple);
			send_insert(ctx, txn, relation, known, &new);
			break;
		case REORDER_BUFFER_CHANGE_UPDATE:
			if (!identified)
				break;
			old = read_old(relation, change);
			new = read_row(columns, &change->data.tp.newtuple->tuple);
			send_update(ctx, txn, relation, known, &old, &new);
			break;
		case REORDER_BUFFER_CHANGE_DELETE:
			if (!identified)
				break;
			old = read_old(relation, change);
			send_delete(ctx, txn, relation, known, &old);
			break;
		default:
			elog(ERROR, "unexpected change %d", (int) change->action);
	}
}

static void
on_change(LogicalDecodingContext *ctx, ReorderBufferTXN *txn, Relation relation,
		  ReorderBufferChange *change)
{
	Session    *session = ctx->output_plugin_private;
	MemoryContext before;
	Known	   *known;

	if (!is_publishable_relation(relation))
		return;
	before = MemoryContextSwitchTo(session->passing);
	known = know_relation(session, relation);
	if (known->inserts || known->updates || known->deletes)
		send_row(ctx, txn, relation, known, change);
	MemoryContextSwitchTo(before);
	MemoryContextReset(session->passing);
}

/*
 * No callbacks for TRUNCATE, logical messages, in-progress and prepared transactions: the server then
 * leaves them out (prepared ones come at their commit), as YugabyteDB does.
 */
void
_PG_output_plugin_init(OutputPluginCallbacks *callbacks)
{
	callbacks->startup_cb = on_startup;
	callbacks->begin_cb = on_begin;
	callbacks->change_cb = on_change;
	callbacks->commit_cb = on_commit;
}
