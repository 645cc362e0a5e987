# Which headers are public: those a program is told to include, and what they include in turn. Nothing else is installed.
# Installing reads the sources anew, so that the list is never behind them.

set(LOCKSTEP_ENTRY_HEADERS
  lockstep/lockstep.h
  lockstep/cluster.h
  lockstep/compat.h
  lockstep/contrib.h
  lockstep/train.h
  lockstep/data/format/csv.h
  lockstep/data/format/example_parser.h
  lockstep/data/format/fixed_length.h
  lockstep/data/format/npy.h
  lockstep/data/format/text_lines.h
  lockstep/data/format/tfrecord.h
  lockstep/data/torch_dataset.h
  lockstep/strategy/default_strategy.h)

# lockstep_public_headers(out source_dir): paths relative to `source_dir`. version.h, which is generated, is not among them.
function(lockstep_public_headers out source_dir)
  set(found "")
  set(open ${LOCKSTEP_ENTRY_HEADERS})
  while(open)
    list(POP_FRONT open header)
    if(header IN_LIST found OR NOT EXISTS ${source_dir}/${header})
      continue()
    endif()
    list(APPEND found ${header})
    file(STRINGS ${source_dir}/${header} includes REGEX "^#include \"lockstep/")
    list(TRANSFORM includes REPLACE "^#include \"([^\"]+)\".*$" "\\1")
    list(APPEND open ${includes})
  endwhile()
  set(${out} ${found} PARENT_SCOPE)
endfunction()
