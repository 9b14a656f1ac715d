# Finds SentencePiece, whose Debian package has only a pkg-config file; defines the target SentencePiece::SentencePiece.
find_path(SentencePiece_INCLUDE_DIR sentencepiece_processor.h)
find_library(SentencePiece_LIBRARY sentencepiece)
find_library(SentencePiece_train_LIBRARY sentencepiece_train)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SentencePiece
                                  REQUIRED_VARS SentencePiece_LIBRARY SentencePiece_train_LIBRARY SentencePiece_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "install libsentencepiece-dev or its equivalent")
mark_as_advanced(SentencePiece_INCLUDE_DIR SentencePiece_LIBRARY SentencePiece_train_LIBRARY)
if(SentencePiece_FOUND AND NOT TARGET SentencePiece::SentencePiece)
  add_library(SentencePiece::SentencePiece INTERFACE IMPORTED)
  # Link options precede all libraries. SentencePiece and libc10 both export a variable FLAGS_minloglevel, of different
  # types. Only SentencePiece uses it, so the loader must find SentencePiece's first.
  set_target_properties(SentencePiece::SentencePiece PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${SentencePiece_INCLUDE_DIR}"
    INTERFACE_LINK_OPTIONS
      "LINKER:--push-state,--no-as-needed;${SentencePiece_LIBRARY};${SentencePiece_train_LIBRARY};LINKER:--pop-state")
endif()
