insert into quoted_names values (2, 'streamed', 'b', 'c');
insert into dotted_enum values (2, 'fine', array['sad', null]::"mood.of"[]);
insert into dotted_aside values (2, 'on', array['off']::aside."state.of"[]);
insert into far_dates select id + 10, d, ds, ts from far_dates;
